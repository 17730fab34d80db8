"""The gradient noise scale: without bias, and the same run as without it."""

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import CPU, WORDS, learner_after, make_steps, recipe
from helpers.composed import compose_recipe
from helpers.reference_run import newest_checkpoint
from helpers.server_runs import ALLREDUCE, make_learner
from helpers.server_runs import make_steps as steps_until
from helpers.threaded import run_on_threads
from torch import nn
from torch.utils.checkpoint import checkpoint

from lsgd.comm.single import SingleComm
from lsgd.compare import compare_metrics
from lsgd.errors import UsageError
from lsgd.learner import Learner
from lsgd.metric_sums import MetricSums
from lsgd.recipe.checks import check_recipe, check_world_size
from lsgd.rules import noise_scale
from lsgd.run.read import read_run
from lsgd.run.rows import read_rows
from lsgd.strategy.allreduce import NoiseScaleAllReduce
from lsgd.strategy.reducer import Reducer
from lsgd.train import train

ON = "noise_scale=true"
ONE = "workers_per_pass=1"
MEAN = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
SPREAD = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
"""The gradient of an example is MEAN + SPREAD or MEAN - SPREAD, so |G|² is 25 and tr Σ is 9."""


def signs(examples: int) -> torch.Tensor:
    """Rows of signs, of which each column is as often 1 as -1, and any two as often alike as not:
    the expectation of a square over all draws is their mean, exactly."""
    count = 1 << examples.bit_length()
    table = [
        [(-1.0) ** (row & column).bit_count() for column in range(1, examples + 1)]
        for row in range(count)
    ]
    return torch.tensor(table, dtype=torch.float64)


def measured(sizes: list[int]) -> dict[str, float]:
    """What steps in passes of these sizes come to, over all draws, in one process."""
    model = nn.Linear(3, 1, bias=False).double()
    reducer = Reducer(model.parameters(), SingleComm(), bucket_mb=1, compression="none")
    tally = MetricSums(1, CPU)
    sums = tally.add_sum(noise_scale.STATE_KEY, noise_scale.SUM_COUNT)
    watched = noise_scale.NoiseScaleSums(model.parameters(), sums, whole_steps=True)
    for row in signs(sum(sizes)):
        gradients = MEAN + row[:, None] * SPREAD
        reducer.start(sum(sizes), len(sizes))
        for part in gradients.split(sizes):
            reducer.backward(model(part).sum())
            watched.end_micro_batch()
        reducer.finish()
        watched.end_step(sizes, sum(sizes), reducer.gradient_norm)
    return noise_scale.noise_metrics(tally.state(lambda _: None))


def test_two_gradients_of_a_parameter_are_refused() -> None:
    """Of two reentrant checkpoints, the squares of whose norms are not that of their sum."""
    model, sums = nn.Linear(3, 3), torch.zeros(noise_scale.SUM_COUNT)
    watched = noise_scale.NoiseScaleSums(model.parameters(), sums, whole_steps=True)
    images = torch.ones(2, 3).requires_grad_()
    for reentrant in (False, True):
        hidden = checkpoint(model, images, use_reentrant=reentrant)
        loss = checkpoint(model, hidden, use_reentrant=reentrant).sum()
        if reentrant:
            with pytest.raises(UsageError, match=r"two gradients.* use_reentrant=False"):
                loss.backward()
        else:
            loss.backward()
            watched.end_micro_batch()


@pytest.mark.parametrize("sizes", [[1] * 16, [2] * 8, [8, 8], [1, 15], [7, 5, 3, 1]])
def test_it_is_without_bias_for_passes_of_any_size(sizes: list[int]) -> None:
    found = measured(sizes)
    assert found == pytest.approx(
        {"gradient_square": 25, "gradient_variance": 9, "noise_scale": 9 / 25}, rel=1e-12
    )


def test_a_step_of_one_pass_says_nothing() -> None:
    assert measured([16]) == {}


def test_no_gradient_but_noise_has_no_scale() -> None:
    """The estimate of |G|² may be below 0, and stays as it is, so that a mean of many is right."""
    sums = torch.tensor([2.0, 1.0, 0.5, 1.0, 0.1], dtype=torch.float64)
    found = noise_scale.noise_metrics({noise_scale.STATE_KEY: sums})
    assert found["gradient_square"] == -2
    assert math.isnan(found["noise_scale"])


def rates_after(learner: Learner) -> dict[str, float]:
    steps_until(learner, 5)
    return noise_scale.noise_metrics(learner.summed_counts())


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_add_up_what_one_has(processes: int) -> None:
    """Over an epoch whose last step has 6 + 6 + 6 + 2 + 0 examples, with a pass for each worker."""
    words = (ON, ONE)
    expected = rates_after(make_learner(SingleComm(), ALLREDUCE, *words))
    assert expected.keys() == {"gradient_square", "gradient_variance", "noise_scale"}
    found = run_on_threads(
        processes, lambda comm: rates_after(make_learner(comm, ALLREDUCE, *words))
    )
    for rates in found:
        assert rates == pytest.approx(expected, rel=1e-10, nan_ok=True)


@pytest.mark.parametrize("words", [(), ("optim=lars",), ("optim.clip_norm=0.1",)])
def test_the_run_is_the_same_and_its_gradients_are_those_before_the_optimizer(words: Any) -> None:
    """LARS and clipping change the gradients in place."""
    plain = learner_after(recipe(ONE, *words), 0, 4)
    noisy = learner_after(recipe(ON, ONE, *words), 0, 4)
    assert isinstance(noisy.strategy, NoiseScaleAllReduce)
    assert noisy.recipe.fingerprint == plain.recipe.fingerprint
    for name, value in plain.model.state_dict().items():
        assert torch.equal(noisy.model.state_dict()[name], value), name
    norm = noisy.metric_sums.extra_sums[noise_scale.STATE_KEY][1].clone()
    make_steps(noisy, 4, 5)
    added = noisy.metric_sums.extra_sums[noise_scale.STATE_KEY][1] - norm
    assert added.sqrt() == pytest.approx(noisy.step_metrics()["gradient_norm"], rel=1e-6)


def test_sums_go_on_where_they_were_saved_and_end_with_the_epoch() -> None:
    made = recipe(ON, ONE)
    straight, left, other = (
        learner_after(made, 0, 6),
        learner_after(made, 0, 3),
        Learner(made, SingleComm(), CPU),
    )
    other.restore(copy.deepcopy(left.checkpoint()))
    make_steps(other, 3, 6)
    assert (
        noise_scale.noise_metrics(other.summed_counts())
        == noise_scale.noise_metrics(straight.summed_counts())
        != {}
    )
    other.end_epoch(0, {})
    assert noise_scale.noise_metrics(other.summed_counts()) == {}


@pytest.mark.parametrize(("before", "behind"), [((), (ON,)), ((ON,), ())])
def test_it_may_begin_and_end_in_mid_run(before: tuple[str, ...], behind: tuple[str, ...]) -> None:
    left, other = (
        learner_after(recipe(ONE, *before), 0, 3),
        Learner(recipe(ONE, *behind), SingleComm(), CPU),
    )
    other.restore(copy.deepcopy(left.checkpoint()))
    make_steps(other, 3, 6)
    assert bool(noise_scale.noise_metrics(other.summed_counts())) == bool(behind)


def calls(*words: str) -> Counter[str]:
    """The operators of a step's forward, backward and update, and how often each is called."""
    learner = learner_after(recipe("workers=4", "workers_per_pass=2", *words), 0, 2)
    # torch 2.11 warns without acc_events that it forgets earlier cycles, of which there are none.
    with torch.profiler.profile(acc_events=True) as profiled:
        make_steps(learner, 2, 3)
    return Counter({event.key: event.count for event in profiled.key_averages()})


@pytest.mark.slow
def test_it_costs_a_norm_of_each_parameter_in_each_pass() -> None:
    """And a few operators of numbers in each pass and step, however large the model is."""
    without, with_ = calls(), calls(ON)
    parameters = sum(1 for _ in learner_after(recipe(), 0, 1).model.parameters())
    assert (with_ - without)["aten::linalg_vector_norm"] == 2 * parameters
    assert not without - with_
    # A norm and the stack of all have these within; what else there is comes once a pass or a step.
    inner = {"aten::as_strided", "aten::empty", "aten::resize_", "aten::unsqueeze"}
    others = {key: n for key, n in (with_ - without).items() if key not in inner}
    assert sum(others.values()) - 2 * parameters < 2 * parameters


@pytest.mark.slow
def test_rows_and_curves_have_it(tmp_path: Path) -> None:
    """Of the steps since the row before, and of whole epochs; two runs may differ in it."""
    words = (
        "epochs=2", "schedule.milestones=[]", "schedule.warmup=none", "log_steps=5",
        "precision=float64", "inputs=synthetic", "data.train_examples=320", "data.val_examples=50",
    )  # fmt: skip
    for name, more in (("a", (ON, ONE)), ("b", (ON, "workers_per_pass=2")), ("c", (ONE,))):
        train(compose_recipe(*WORDS, "workers=4", *words, *more, f"run_dir={tmp_path / name}"))
    rows = [row for row in read_rows(tmp_path / "a/metrics.jsonl") if row["kind"] != "start"]
    for row in rows:
        prefix = "train_" if row["kind"] == "epoch" else ""
        square, variance, scale = (
            row[prefix + key] for key in ("gradient_square", "gradient_variance", "noise_scale")
        )
        assert scale is None or scale == variance / square
    assert sum(row.get("noise_scale") is not None for row in rows) > 0
    without = json.dumps(read_rows(tmp_path / "c/metrics.jsonl"))
    assert "noise" not in without
    assert "variance" not in without
    runs = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    assert compare_metrics(runs, 1e-10).first_mismatch is None
    assert newest_checkpoint(tmp_path / "a").rates[2]["train_noise_scale"] == pytest.approx(
        rows[-1]["train_noise_scale"], nan_ok=True
    )


@pytest.mark.parametrize("strategy", ["sync", "async", "local"])
def test_strategies_with_other_steps_are_refused(strategy: str) -> None:
    made = compose_recipe("+recipe=fashion_lenet5", f"strategy={strategy}")
    with pytest.raises(
        UsageError, match=f"unlike strategy={strategy}; write strategy=allreduce, or"
    ):
        check_recipe(replace(made, noise_scale=True))


@pytest.mark.parametrize(
    ("words", "how"),
    [("workers=1", "leave it out"), ("workers=8 workers_per_pass=8", "write workers_per_pass=4")],
)
def test_steps_of_one_pass_have_nothing_to_compare(words: str, how: str) -> None:
    made = compose_recipe("+recipe=fashion_bs64", ON, *words.split())
    with pytest.raises(UsageError, match=f"make one micro-batch per step; {how}"):
        check_world_size(made, 1)
    several = compose_recipe("+recipe=fashion_bs64", ON, "workers=8", "workers_per_pass=8")
    check_world_size(several, 2)


def test_epochs_of_one_pass_are_named_at_the_start() -> None:
    """A run whose minibatch grows measures in the others, and may be resumed."""
    words = ["workers=8", "workers_per_pass=8", "batch_schedule=[[3,16,8]]"]
    made = compose_recipe("+recipe=fashion_bs64", ON, *words)
    check_world_size(made, 1)
    assert made.describe_noise_gaps(1) == (
        "epoch 1 to 3: no noise scale, since a step is one micro-batch; write workers_per_pass=4 "
        "for more"
    )
    alone = replace(made, workers=1, batch_schedule=[[1, 16, 8]])
    assert alone.describe_noise_gaps(1) == (
        "epoch 1: no noise scale, since a step is one micro-batch"
    )
    assert not made.describe_noise_gaps(2)
    assert not replace(made, workers_per_pass=4).describe_noise_gaps(1)
    assert not replace(made, noise_scale=False).describe_noise_gaps(1)
