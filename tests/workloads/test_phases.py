"""Image size, minibatch and lr that change with the epoch: one trajectory, however it is split."""

from pathlib import Path

import pytest
from helpers.checkpoints import CPU, WORDS
from helpers.composed import compose_recipe
from helpers.differences import distance, largest_difference
from helpers.halted import train_until
from helpers.threaded import ThreadComm, run_on_threads

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.evaluate import evaluate_path
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step

SMALL = (
    "epochs=4", "inputs=synthetic", "data.train_examples=182", "data.val_examples=50",
    "precision=float64", "tail=keep", "workers=3", "worker_batch=8",
)  # fmt: skip
PHASES = (
    "schedule=points", "schedule.milestones=[]",
    "schedule.points=[[0,0.01],[1,0.05],[2,0.08],[2,0.02],[4,0]]",
    "batch_schedule=[[1,5,12],[2,4,8],[3,3,10]]",
    "data.image_size=12", "image_sizes.points=[[0,8],[1,8],[1,12],[3,20]]",
    "image_sizes.multiple=4", "evaluation.image_sizes=[[0,8],[2,16],[3,12]]",
)  # fmt: skip
"""8 steps of 24 images, 4 of 60, 6 of 32, 7 of 30; of 8, 12, 16 and 20 pixels.

Evaluated are 8, 8, 16 and 12 pixels.
"""
OTHERS = (
    "loss=bce", "label_smoothing=0.08", "optim.decay=decoupled", "optim.decay_norm=true",
    "model.blurpool=all", "model.gamma=uniform", "model.last_bias=-2.3", "evaluation.mirror=true",
    "averaging=ema", "averaging.half_life=6", "averaging.every=4", "bn_statistics.examples=40",
)  # fmt: skip
EDGES = (8, 12, 18)


def phases(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *SMALL, *PHASES, *words)


def together(*words: str) -> Recipe:
    """Return the recipe of phases that also has every other field of the recipes by phases."""
    return phases(*OTHERS, *words)


def trained(
    comm: Comm, made: Recipe, saved: Checkpoint | None = None, end: int | None = None
) -> Checkpoint:
    """Train a recipe, from a checkpoint if there is one, up to a step; return its checkpoint."""
    learner = Learner(made, comm, CPU)
    if saved:
        learner.restore(saved)
    inputs = learner.workload.inputs()
    for epoch, remaining in list(learner.remaining_epochs()):
        steps = [step for step in remaining if end is None or step < end]
        tasks = list(learner.strategy.tasks(epoch, steps))
        batches = inputs.train(each for task in tasks for each in task.micro_batches)
        for task in tasks:
            train_step(learner, task, batches)
        if steps != remaining or end == learner.next_step:
            return learner.checkpoint()
        learner.strategy.synchronize()
        metrics = learner.scores(learner.summed_counts()).with_prefix("train")
        metrics |= evaluate(learner, inputs)["val"].with_prefix("val")
        learner.end_epoch(epoch, metrics)
    return learner.checkpoint()


def test_each_epoch_has_its_minibatch_size_and_lr() -> None:
    made = phases()
    learner = Learner(made, SingleComm(), CPU)
    inputs = learner.workload.inputs()
    seen = []
    for epoch, steps in made.epochs_from(0):
        (task,) = learner.strategy.tasks(epoch, steps[:1])
        images = [images for images, _ in inputs.train(iter(task.micro_batches))]
        seen.append((len(steps), task.divisor, task.active_workers, images[0].shape[-1]))
    assert seen == [(8, 24, 3, 8), (4, 60, 5, 12), (6, 32, 4, 16), (7, 30, 3, 20)]
    assert [made.lr(step) for step in (0, *EDGES)] == pytest.approx([0.01, 0.05, 0.02, 0.01])
    (whole,) = [images for images, _ in inputs.evaluation(
        learner.workload.evaluation_micro_batches("val", 0, 1)
    )]  # fmt: skip
    assert whole.shape[-1] == made.data.image_size == 12


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "workers_per_pass", "edge"), [
    (1, 3, 8), (2, 1, 12), (2, 2, 11), (3, 2, 18), (3, 5, 17),
])  # fmt: skip
def test_any_split_and_a_resume_at_each_edge(
    alone: Checkpoint, processes: int, workers_per_pass: int, edge: int
) -> None:
    """Trained to an edge of a phase by some processes, and from there by another number."""
    made = together(f"workers_per_pass={workers_per_pass}")

    def begin(comm: ThreadComm) -> Checkpoint:
        return trained(comm, made, end=edge)

    (saved, *_) = run_on_threads(processes, begin)
    assert saved.step == edge

    def go_on(comm: ThreadComm) -> Checkpoint:
        return trained(comm, made, saved)

    (found, *_) = run_on_threads(processes % 3 + 1, go_on)
    assert distance(found, alone) < 1e-10
    assert found.rates.keys() == alone.rates.keys() == {1, 2, 3, 4}
    for epoch, rates in alone.rates.items():
        assert found.rates[epoch] == pytest.approx(rates, rel=1e-10)


@pytest.fixture(scope="module")
def alone() -> Checkpoint:
    return trained(SingleComm(), together())


@pytest.mark.slow
def test_the_sizes_make_a_difference(alone: Checkpoint) -> None:
    other = trained(SingleComm(), together("image_sizes.points=[[0,12]]"))
    assert largest_difference(other.model, alone.model) > 1e-3


def test_measured_statistics_are_of_the_size_of_the_epoch() -> None:
    """They are measured on the crops of the first epoch, whatever the epoch of the evaluation.

    After them come the evaluated images, in the size of the epoch too.
    """
    learner = Learner(
        phases("bn_statistics=precise", "bn_statistics.examples=24"), SingleComm(), CPU
    )
    sizes: list[int] = []
    learner.model.conv1.register_forward_pre_hook(lambda _, args: sizes.append(args[0].shape[-1]))
    inputs = learner.workload.inputs()
    for epoch in (0, 2, None):
        evaluate(TrainedModel(learner.workload, learner.model, learner.comm, CPU, epoch), inputs)
    assert sizes == [8, 8, 16, 16, 20, 12]
    assert learner.epoch == 0


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_to_what_its_run_said(tmp_path: Path) -> None:
    """That of the second of four epochs, whose average has statistics of images of its size."""
    made = together(f"run_dir={tmp_path}", "log_steps=1")
    train_until(made, EDGES[1] + 1)
    (saved,) = [path for path in checkpoint.checkpoint_files(tmp_path) if "12" in path.name]
    rates = checkpoint.decode_checkpoint(checkpoint.read(saved), "").rates[2]
    found = evaluate_path(saved)["val"].with_prefix("val")
    assert found == pytest.approx({key: rates[key] for key in found}, rel=1e-12)
    asked = evaluate_path(saved, ["data.image_size=12"])["val"].metrics
    assert asked["loss"] != pytest.approx(found["val_loss"], rel=1e-6)
