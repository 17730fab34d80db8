from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsgd.rules import sampler
from lsgd.run.checkpoint import order_hash


@given(st.integers(1, 12), st.integers(1, 6), st.booleans(), st.data())
def test_processes_share_each_step_worker_by_worker(
    k: int, n: int, keeps_tail: bool, data: st.DataObject
) -> None:
    """Whatever the hardware, step t is the next kn examples and worker w has the w-th n of them."""
    examples, kn = data.draw(st.integers(k * n, 4 * k * n)), k * n
    world_size, most = data.draw(st.integers(1, k)), data.draw(st.integers(1, k + 1))
    order = sampler.epoch_order(examples, seed=0, epoch=3)
    steps = sampler.steps_per_epoch(examples, kn, keeps_tail=keeps_tail)
    assert steps == (-(-examples // kn) if keeps_tail else examples // kn)
    for step in range(steps):
        passes = [
            each
            for rank in range(world_size)
            for each in sampler.step_micro_batches(
                order, epoch=3, step=step, workers=k, worker_batch=n,
                hosted=sampler.contiguous_share(k, world_size, rank), workers_per_pass=most,
            )
        ]  # fmt: skip
        ids = [each.by_worker.ravel() for each in passes]
        assert np.array_equal(np.concatenate(ids), order[step * kn : (step + 1) * kn])
        full, remainder = divmod(min(kn, examples - step * kn), n)
        sizes = [len(ids) for each in passes for ids in each.by_worker]
        assert sizes == [n] * full + [remainder] * (remainder > 0)
        # Each worker of the run in one pass, but for those that have no example.
        assert [w for each in passes for w in each.workers] == list(range(len(sizes)))
        for each in passes:
            assert (each.epoch, each.step) == (3, step)
            # In turns: the first example of each worker, then the second of each.
            turns = [turn for ids in zip(*each.by_worker.tolist(), strict=True) for turn in ids]
            assert each.examples.tolist() == turns
            assert 1 <= len(each.workers) <= most


@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_each_epoch_is_a_permutation(examples: int, seed: int, epoch: int) -> None:
    order = sampler.epoch_order(examples, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(examples))


def test_another_epoch_or_seed_is_another_order() -> None:
    """Uncorrelated, that is, and neither a rotation of it nor the same with the roles swapped."""
    orders = [sampler.epoch_order(1000, seed=s, epoch=e) for s in range(4) for e in range(4)]
    for a, b in combinations([np.arange(1000), *orders], 2):
        # Five standard deviations of a correlation of 1000 pairs.
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.16
        following = b[np.argsort(a)]
        assert (np.diff(following) == 1).sum() < 10


def test_the_orders_are_those_of_all_earlier_versions() -> None:
    """A change here, if only by another numpy, would make every published run another one."""
    assert sampler.epoch_order(10, seed=0, epoch=0).tolist() == [2, 8, 0, 5, 9, 7, 6, 3, 4, 1]
    imagenet = sampler.epoch_order(1_281_167, seed=1, epoch=89)
    assert imagenet[:6].tolist() == [1020968, 204886, 155087, 655493, 694531, 53323]
    expected = "62a3e10cc16845bc962a46a3926f6d2031ad0025f51fd2ba49a06e76e9583859"
    assert order_hash(imagenet) == expected


def test_steps_of_the_paper() -> None:
    steps = [sampler.steps_per_epoch(1_281_167, 2**b, keeps_tail=False) for b in range(8, 14)]
    assert steps == [5004, 2502, 1251, 625, 312, 156]
    assert sampler.steps_per_epoch(1_281_167, 8192, keeps_tail=True) == 157
    assert sampler.steps_per_epoch(8192, 8192, keeps_tail=True) == 1


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_are_fair_and_contiguous(count: int, world_size: int) -> None:
    shares = [sampler.contiguous_share(count, world_size, rank) for rank in range(world_size)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=60).map(np.array),
    st.integers(1, 9),
    st.integers(0, 2**64 - 1),
)
def test_an_order_by_length_has_like_lengths_in_a_step(
    lengths: NDArray[np.int64], batch_size: int, seed: int
) -> None:
    """The steps, put in the order of their lengths, are the sorted examples; a last short one has
    any lengths."""
    order = sampler.length_order(lengths, batch_size, seed=seed, epoch=1)
    assert np.array_equal(np.sort(order), np.arange(len(lengths)))
    whole = len(lengths) // batch_size * batch_size
    steps = [*map(list, lengths[order[:whole]].reshape(-1, batch_size))]
    in_turn = [length for step in sorted(steps) for length in step]
    assert in_turn == sorted(lengths[order[:whole]])


def test_an_order_by_length_is_drawn_for_each_epoch() -> None:
    """Which examples share a step, the order of steps, and which ones the tail has."""
    lengths = np.repeat(np.arange(1, 11), 10)
    orders = [sampler.length_order(lengths, 8, seed=0, epoch=epoch) for epoch in range(2)]
    one, other = ([frozenset(step) for step in np.split(order[:96], 12)] for order in orders)
    assert not set(one) & set(other)
    tails = [set(lengths[order[96:]]) for order in orders]
    assert tails[0] != tails[1]
    firsts = [lengths[order[:96:8]].tolist() for order in orders]
    assert firsts[0] != firsts[1] != sorted(firsts[1])
