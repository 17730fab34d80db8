"""The training loop: one run from its recipe to its final metric; the module to read first.

    python -m lsgd.train recipe=digits                                # alone, on a laptop
    torchrun --nproc-per-node 8 -m lsgd.train recipe=bs8k             # the 8 GPUs of a machine
    horovodrun -np 8 python -m lsgd.train recipe=bs8k                 # the same over Horovod
    mpirun -np 256 python -m lsgd.train recipe=bs8k run_dir=runs/a    # a cluster; again: resumes

A recipe has k workers of n images each (Goyal et al. 2017, section 2). Here the workers are
virtual: any number of processes hosts the k workers, and the trajectory is the same. The data of a
step flows like this:

    order of the epoch -> micro-batches of this process -> forward and backward, gradients add up
                       -> all-reduce, division by kn -> momentum SGD at lr(epoch)
"""

import sys
from collections.abc import Sequence
from itertools import tee

from lsgd.autotune import resolve_auto_fields
from lsgd.comm import joined
from lsgd.errors import PreemptedError
from lsgd.evaluation import evaluate
from lsgd.inputs import Inputs
from lsgd.inputs.consistency import open_consistent_inputs
from lsgd.inputs.staging import stage_data
from lsgd.job import preemption
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.models.pretrained import with_pretrained_weights
from lsgd.profile import profiling
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_world_size
from lsgd.recipe_parser import parse_recipe
from lsgd.run import checkpoint, metrics
from lsgd.run.folder import open_run
from lsgd.run.saver import CheckpointSaver
from lsgd.scores import named_by_set
from lsgd.start_weights import read_start_weights
from lsgd.step import train_step
from lsgd.workloads import open_training_inputs


def train(recipe: Recipe) -> float:
    """Train the recipe, or resume it in its run folder; return the final metric.

    For images the metric is the paper's: the median top-1 validation error of the last 5 epochs, in
    percent (section 5.1).

    Raises UsageError, before anything is written, if the recipe cannot be trained here;
    DivergedError as soon as a loss or gradient is not finite; PreemptedError after a signal to any
    process has made all processes save and exit.
    """
    device = pick_device(recipe.device, numa=recipe.numa)
    with joined(recipe.comm, device) as comm:
        check_world_size(recipe, comm.world_size)
        recipe = with_pretrained_weights(recipe, comm)
        stage_data(recipe, comm)
        inputs, data = open_consistent_inputs(
            comm, lambda: open_training_inputs(recipe, device), recipe
        )
        start = read_start_weights(recipe, comm)
        with open_run(recipe, comm) as run:
            recipe, choices = resolve_auto_fields(recipe, run.execution, comm, device)
            learner = Learner(recipe, comm, device, data, start.tensors, start.optimizer)
            if run.content:
                learner.restore(checkpoint.decode_checkpoint(run.content, run.checkpoint_path))
            with metrics.open_log(learner, run.folder) as log:
                log.start(learner, inputs.name, *start.notes, *choices)
                if run.warning:
                    log.warn(learner.next_step, run.warning)
                saver = CheckpointSaver(
                    run.folder, comm, log, recipe.kept_checkpoints, best_first=recipe.best_first
                )
                with (
                    preemption.defer_stop_signals(run.folder),
                    saver,
                    profiling(learner, inputs, run.folder, log),
                ):
                    train_epochs(learner, inputs, saver, log)
                log.end(recipe.format_result(learner.metric, learner.epoch_metrics))
            return learner.final_metric()


def train_epochs(
    learner: Learner, inputs: Inputs, saver: CheckpointSaver, log: metrics.Log
) -> None:
    """Train the remaining epochs of a run; on preemption all processes save after the same step."""
    try:
        for epoch, steps in learner.remaining_epochs():
            train_epoch(learner, inputs, epoch, steps, saver, log)
    except PreemptedError:
        saver.save(learner.checkpoint())
        raise preemption.stop_exception(learner.next_step, saver.folder) from None


def train_epoch(
    learner: Learner,
    inputs: Inputs,
    epoch: int,
    steps: list[int],
    saver: CheckpointSaver,
    log: metrics.Log,
) -> None:
    """Train the remaining steps of an epoch, then evaluate the model and save a checkpoint."""
    recipe, strategy, meter = learner.recipe, learner.strategy, None
    *parts, last = learner.split_at_evaluations(epoch, steps)
    for part in parts:
        meter = train_steps(learner, inputs, epoch, part, saver, log, meter)
        evaluate_within_epoch(learner, inputs, saver, log)
    meter = train_steps(learner, inputs, epoch, last, saver, log, meter)

    due = strategy.synchronize()
    sums = learner.summed_counts()
    speed, epoch_metrics = meter.read_epoch(sums), learner.scores(sums).with_prefix("train")
    if due:
        saver.save(learner.checkpoint())
    sets = learner.evaluation_sets_after(epoch)
    epoch_metrics |= named_by_set(evaluate(learner, inputs, sets, log.watch_evaluation))
    learner.end_epoch(epoch, epoch_metrics)
    done = learner.next_step
    log.write("epoch", done, epoch=epoch + 1, lr=recipe.lr(done - 1), **epoch_metrics, **speed)
    saver.save(learner.checkpoint(), milestone=recipe.drops_in(epoch))


def train_steps(
    learner: Learner,
    inputs: Inputs,
    epoch: int,
    steps: list[int],
    saver: CheckpointSaver,
    log: metrics.Log,
    before: metrics.Meter | None,
) -> metrics.Meter:
    """Train steps of an epoch up to an evaluation; return their meter, which continues `before`."""
    recipe, strategy = learner.recipe, learner.strategy
    # Two iterators over the same tasks, since the loader prefetches some steps.
    tasks, ahead = tee(strategy.tasks(epoch, steps))
    batches = log.watch_training(
        inputs.train(each for task in ahead for each in task.micro_batches), steps
    )
    meter = metrics.Meter(learner, learner.summed_counts(), batches, before)
    for task in tasks:
        train_step(learner, task, batches)
        done = learner.next_step
        if done % recipe.log_steps == 0:
            log.write(
                "train", done, **learner.step_metrics(), **meter.read(learner.summed_counts())
            )
        due = strategy.poll() or (recipe.checkpoint_steps and done % recipe.checkpoint_steps == 0)
        if due and done <= steps[-1]:
            saver.save(learner.checkpoint())
    meter.stop()
    return meter


def evaluate_within_epoch(
    learner: Learner, inputs: Inputs, saver: CheckpointSaver, log: metrics.Log
) -> None:
    """Evaluate the model after a step within an epoch, and save a checkpoint."""
    learner.strategy.synchronize()
    sets = learner.workload.evaluation_sets
    found = named_by_set(evaluate(learner, inputs, sets, log.watch_evaluation))
    learner.end_evaluation(found)
    done = learner.next_step
    log.write("evaluation", done, epoch=learner.recipe.epoch(done), **found)
    saver.save(learner.checkpoint())


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd train` command line and return its exit code, such as 75 if preempted."""
    about = "Train a recipe; rerun the same command to resume it."
    return run_command(lambda: train(parse_recipe(argv, program="lsgd.train", about=about)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
