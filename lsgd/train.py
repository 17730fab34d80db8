"""One run, from a recipe to its error: the page to read first.

    python -m lsgd.train +recipe=digits                               # alone, on a laptop
    torchrun --nproc-per-node 8 -m lsgd.train +recipe=bs8k            # the 8 GPUs of a machine
    horovodrun -np 8 python -m lsgd.train +recipe=bs8k                # the same over Horovod
    mpirun -np 256 python -m lsgd.train +recipe=bs8k run_dir=runs/a   # a cluster; again: resumes

A recipe has k workers of n images each (Goyal et al. 2017, section 2). Here the workers are
virtual: however many processes there are, they host the k workers among them, and the run is the
same. The data of a step flows like this:

    order of the epoch -> the passes of this process -> forward and backward, gradients add up
                       -> sum over the processes, divided by kn -> momentum SGD at lr(epoch)
"""

import sys
from collections.abc import Sequence
from itertools import tee

from lsgd import config
from lsgd.autotune import with_fastest_pass
from lsgd.comm import agree, joined
from lsgd.errors import Preempted
from lsgd.evaluation import evaluate
from lsgd.inputs import Inputs
from lsgd.job import preemption
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.profile import profiling
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_world_size
from lsgd.run import checkpoint, metrics
from lsgd.run.folder import open_run
from lsgd.run.saver import Saver
from lsgd.step import train_step
from lsgd.workloads import open_workload


def train(recipe: Recipe) -> float:
    """Train the recipe, or what is left of it in its run folder; return the number of the run.

    For images it is the paper's: the median top-1 validation error of the last 5 epochs, in percent
    (section 5.1).
    Raises Refused before anything is written if the run makes no sense here, Diverged as soon as a
    loss or gradient is not finite, and Preempted once a signal to any process has made all of them
    save and leave.
    """
    device = pick_device(recipe.device, numa=recipe.numa)
    with joined(recipe.comm, device) as comm:
        check_world_size(recipe, comm.world_size)
        inputs = agree(comm, lambda: open_workload(recipe, device).inputs())
        with open_run(recipe, comm) as run:
            recipe, choices = with_fastest_pass(recipe, run.workers_per_pass, comm, device)
            learner = Learner(recipe, comm, device)
            if run.content:
                learner.restore(checkpoint.load(run.content, run.path))
            with metrics.open_log(learner, run.folder) as log:
                log.start(learner, inputs.name, *choices)
                if run.warning:
                    log.warn(learner.next_step, run.warning)
                saver = Saver(run.folder, comm, log, keep=recipe.keep_checkpoints)
                with (
                    preemption.listening(run.folder),
                    saver,
                    profiling(learner, inputs, run.folder, log),
                ):
                    train_epochs(learner, inputs, saver, log)
                number = learner.number()
                log.end(recipe.outcome(learner.metric, number))
            return number


def train_epochs(learner: Learner, inputs: Inputs, saver: Saver, log: metrics.Log) -> None:
    """Train what is left of the run; after a signal all processes save after the same step."""
    try:
        for epoch, steps in learner.epochs_left():
            train_epoch(learner, inputs, epoch, steps, saver, log)
    except Preempted:
        saver.save(learner.checkpoint())
        raise preemption.left(learner.next_step, saver.folder) from None


def train_epoch(
    learner: Learner, inputs: Inputs, epoch: int, steps: list[int], saver: Saver, log: metrics.Log
) -> None:
    """The given steps of the run, all of this epoch, then evaluation and a checkpoint."""
    recipe, strategy = learner.recipe, learner.strategy
    # Two readers of the same tasks: the loader takes them some steps ahead.
    tasks, ahead = tee(strategy.tasks(epoch, steps))
    batches = log.watch_training(
        inputs.train(each for task in ahead for each in task.passes), steps
    )
    meter = metrics.Meter(learner, learner.counted(), batches)
    for task in tasks:
        train_step(learner, task, batches)
        done = learner.next_step
        if done % recipe.log_steps == 0:
            log.write("train", done, **learner.now(), **meter.read(learner.counted()))
        due = strategy.check() or (recipe.checkpoint_steps and done % recipe.checkpoint_steps == 0)
        if due and done <= steps[-1]:
            saver.save(learner.checkpoint())

    strategy.settle()
    counted = learner.counted()
    speed, rates = meter.whole(counted), learner.scores(counted).named("train")
    sets = learner.sets_after(epoch)
    for split, scores in evaluate(learner, inputs, sets, log.watch_evaluation).items():
        rates |= scores.named(split)
    learner.end_epoch(epoch, rates)
    done = learner.next_step
    log.write("epoch", done, epoch=epoch + 1, lr=recipe.lr(done - 1), **rates, **speed)
    saver.save(learner.checkpoint(), milestone=recipe.drops_in(epoch))


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code: 2 if refused, 3 if diverged, 75 if preempted, …"""
    about = "Train a recipe; the same words again resume it."
    return run_command(lambda: train(config.load(argv, program="lsgd.train", about=about)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
