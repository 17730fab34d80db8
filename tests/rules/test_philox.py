from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd import parts
from lsgd.recipe.strategies import VirtualCluster
from lsgd.rules import augmentation, philox, sampler
from lsgd.rules.balance import balanced_order
from lsgd.rules.mixing import draw_mixing
from lsgd.rules.sentence_dropout import feature_dropout_factors, token_drop_mask
from lsgd.strategy.clock import step_seconds
from lsgd.text.synthetic import synthetic_sentences, synthetic_texts

WORDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (4 * "00000000 ", 2 * "00000000 ", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (4 * "ffffffff ", 2 * "ffffffff ", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    c, k, e = ([int(word, 16) for word in line.split()] for line in (counter, key, expected))
    assert philox.uint32_blocks((c[0], c[1], c[2], c[3]), k[0] | k[1] << 32).tolist() == e


@given(st.tuples(*4 * [st.lists(WORDS, min_size=1, max_size=4)]), st.integers(0, 2**64 - 1))
def test_a_draw_depends_on_its_own_counter_alone(axes: tuple[list[int], ...], key: int) -> None:
    """All combinations at once, by broadcasting, are what each gives when asked for alone."""
    together = philox.uint32_blocks(np.ix_(*axes), key)  # type: ignore[arg-type]
    assert together.shape == (4, *map(len, axes))
    alone = [philox.uint32_blocks(counter, key) for counter in product(*axes)]  # type: ignore[arg-type]
    assert np.array_equal(together.reshape(4, -1), np.stack(alone, axis=1))


def test_uniforms_fill_the_half_open_unit_interval() -> None:
    counter = (np.arange(100_000), 0, 0, 0)
    draws = philox.uniforms(counter, key=7)
    assert np.array_equal(draws * 2**32, philox.uint32_blocks(counter, key=7))
    assert draws.min() >= 0
    assert draws.max() < 1
    for row in draws:
        # 10 bins of 10,000: five standard deviations are 474.
        assert np.abs(np.histogram(row, bins=10, range=(0, 1))[0] - 10_000).max() < 474
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 5 / np.sqrt(100_000)


def test_the_draws_of_every_rule_are_those_of_all_earlier_versions() -> None:
    """A change here, such as another last element of a counter, would make other runs of recipes.

    The order of examples and the other augmentations are in the tests of their rules.
    """
    examples, at = np.array([0, 1, 1_281_166]), {"seed": 1, "epoch": 89}
    np.testing.assert_allclose(
        draw_mixing(examples, 32, mixup=0.4, cutmix=1.0, **at),
        [
            [0.703125, 1, 13, 0, 32, 16],
            [0.265895, 0.265895, 0, 0, 0, 0],
            [0.692383, 1, 17, 0, 32, 21],
        ],
        rtol=0, atol=1e-6,
    )  # fmt: skip
    # Labels in no order, in which a sort that is not stable depends on the processor.
    labels = np.arange(60) * 7 % 3
    balanced = balanced_order(labels, **at)
    assert balanced[:12].tolist() == [9, 58, 38, 57, 4, 5, 49, 19, 6, 7, 17, 31]
    lengths = np.repeat([3, 1, 2], 4)
    order = sampler.length_order(lengths, 4, **at)
    assert order.tolist() == [10, 9, 8, 11, 3, 1, 2, 0, 4, 6, 7, 5]
    features = feature_dropout_factors(examples, 6, 0.5, **at)
    assert (features > 0).tolist() == [[1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 1]]
    tokens = token_drop_mask(np.full(16, 7), np.arange(16), 0.5, **at)
    assert tokens.nonzero()[0].tolist() == [2, 4, 5, 6, 7, 8, 9, 10, 14]
    assert augmentation.policy_seeds(examples, **at).tolist() == [
        14096707849436544027, 9712263579056488355, 17558234700617103827
    ]  # fmt: skip
    erased = augmentation.erased_windows(32, examples, probability=0.9, **at)
    assert erased.tolist() == [[0, 0, 0, 0], [2, 1, 24, 13], [1, 0, 24, 12]]
    uniforms = parts.uniforms(examples[:2], draw=2, **at)
    expected = [[0.670933, 0.036127], [0.147625, 0.339891], [0.061653, 0.906099]]
    np.testing.assert_allclose(uniforms[:3], expected, rtol=0, atol=1e-6)
    cluster = VirtualCluster(slow_share=0.2, slow_by=1.0, seed=5)
    seconds = step_seconds(cluster, workers=2, seed=1, epoch=89, steps=range(2))
    np.testing.assert_allclose(
        seconds, [[0.096648083, 0.102308283], [0.096123048, 0.097483511]], rtol=0, atol=2e-9
    )
    texts = synthetic_texts({"train": 8, "val": 4}, classes=30, seed=1).sets
    assert [*texts["train"]] == [0, 15, 23, 24, 17, 7, 0, 1]
    assert [*texts["val"]] == [18, 19, 1, 1]
    sentences = synthetic_sentences({"train": 3}, words=50, classes=4, seed=1).sets["train"]
    assert sentences.lengths.tolist() == [17, 9, 3]
    assert sentences.words[:8].tolist() == [0, 26, 39, 28, 11, 0, 0, 0]
