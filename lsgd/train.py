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
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from lsgd import checkpoint, config, metrics, optim, sampler
from lsgd.comm import agree, describe, from_first, open_comm
from lsgd.errors import Preempted
from lsgd.evaluation import evaluate
from lsgd.inputs import Batch, Inputs, open_inputs
from lsgd.job import preemption
from lsgd.job.command import run_command
from lsgd.job.device import device_name, pick_device
from lsgd.learner import Learner
from lsgd.passes import with_fastest_pass
from lsgd.profile import profiling
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_world_size
from lsgd.sampler import Pass
from lsgd.saver import Saver
from lsgd.tally import scores


def train(recipe: Recipe) -> float:
    """Train the recipe, or what is left of it in its run folder; return its error in percent.

    The error is the paper's: the median top-1 validation error of the last 5 epochs (section 5.1).
    Raises Refused before anything is written if the run makes no sense here, Diverged as soon as a
    loss or gradient is not finite, and Preempted once a signal to any process has made all of them
    save and leave.
    """
    device = pick_device(recipe.device)
    comm = open_comm(
        recipe.comm.library,
        device=device,
        timeout=recipe.comm.timeout,
        join_timeout=recipe.comm.join_timeout,
    )
    try:
        check_world_size(recipe, comm.world_size)
        inputs = agree(comm, lambda: open_inputs(recipe, device))
        run = from_first(comm, lambda: checkpoint.open_run(recipe))
        recipe, timed = with_fastest_pass(recipe, run.workers_per_pass, comm, device, train_step)
        learner = Learner(recipe, comm, device)
        if run.content:
            learner.restore(checkpoint.load(run.content, run.path))
        with metrics.open_log(
            comm.rank,
            run.folder,
            first_step=learner.next_step,
            total_steps=recipe.total_steps,
            epochs=learner.rates,
            examples=recipe.examples,
        ) as log:
            machine = "; ".join([describe(comm, device), inputs.name, *timed])
            log.start(
                recipe.summary(),
                machine,
                device=device_name(device),
                processes=comm.world_size,
                inputs=inputs.name,
            )
            if run.warning:
                log.warn(learner.next_step, run.warning)
            saver = Saver(run.folder, comm, log, keep=recipe.keep_checkpoints)
            with preemption.listening(), saver, profiling(learner, run.folder, log):
                train_epochs(learner, inputs, saver, log)
            error = learner.error()
            log.end(recipe.outcome(error))
        return error
    finally:
        comm.close()


def train_epochs(learner: Learner, inputs: Inputs, saver: Saver, log: metrics.Log) -> None:
    """What is left of the run; told to leave, all processes save after the same step."""
    try:
        for epoch, steps in learner.epochs_left():
            train_epoch(learner, inputs, epoch, steps, saver, log)
    except Preempted:
        saver.save(learner.checkpoint())
        raise Preempted(
            f"told to leave by a signal: saved after step {learner.next_step}, and the same words "
            f"with run_dir={saver.folder} go on from there"
        ) from None


def train_epoch(
    learner: Learner, inputs: Inputs, epoch: int, steps: list[int], saver: Saver, log: metrics.Log
) -> None:
    """The given steps of the run, all of this epoch, then evaluation and a checkpoint."""
    recipe = learner.recipe
    plan = learner.passes(epoch, steps)
    batches = metrics.Timed(inputs.train(each for passes in plan for each in passes))
    meter = metrics.Meter(learner.counted(), batches)
    for step, passes in zip(steps, plan, strict=True):
        train_step(learner, step, passes, batches)
        done = learner.next_step
        if done % recipe.log_steps == 0:
            log.write("train", done, **learner.now(), **meter.read(learner.counted()))
        learner.guard.leave_if_told()
        if step != steps[-1] and recipe.checkpoint_steps and done % recipe.checkpoint_steps == 0:
            saver.save(learner.checkpoint())

    learner.guard.check()
    counted = learner.counted()
    speed = meter.whole(counted)
    rates = scores(counted).named("train") | validated(learner, inputs)
    learner.end_epoch(epoch, rates)
    done = learner.next_step
    log.write("epoch", done, epoch=epoch + 1, lr=recipe.lr(done - 1), **rates, **speed)
    saver.save(learner.checkpoint(), milestone=recipe.drops_in(epoch))


def validated(learner: Learner, inputs: Inputs) -> dict[str, float]:
    """The rates of the model as it is now over the whole validation set."""
    recipe = learner.recipe
    learner.combine_statistics()
    # As lsgd.evaluate does it; and compiling would take longer than it saves.
    with torch.compiler.set_stance("force_eager"):
        found = evaluate(
            learner.model,
            inputs,
            learner.comm,
            examples=recipe.data.val_examples,
            batch=recipe.val_batch,
            device=learner.device,
            dtype=learner.dtype,
        )
    return found.named("val")


def train_step(learner: Learner, step: int, passes: list[Pass], batches: Iterator[Batch]) -> None:
    """One step of the run: the passes of this process, whose images come next in `batches`."""
    recipe, device, phase = learner.recipe, learner.device, learner.phase
    step_of_epoch = step % recipe.steps_per_epoch
    examples = sampler.step_size(recipe.data.train_examples, recipe.batch_size, step_of_epoch)

    phase("optimizer")  # which clears the gradients
    learner.reducer.start(examples, len(passes), leave=preemption.told())
    for each in passes:
        phase("data wait")
        images, labels = next(batches)
        images = images.to(device, learner.dtype, memory_format=learner.layout, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        phase("forward")
        learner.running.start_pass(each.workers)
        with learner.autocast():
            logits = learner.model(images)
        # Summed, not averaged: the reducer divides by the examples of all processes (remark 3).
        loss = F.cross_entropy(logits.to(learner.dtype), labels, reduction="sum")
        learner.tally.add(loss, logits, labels)
        phase("backward")
        learner.reducer.backward(loss)
    phase("communication")
    learner.reducer.finish()

    phase("optimizer")
    learner.running.end_step(active_workers=-(-examples // recipe.worker_batch))
    optim.set_lr(learner.optimizer, recipe.lr(step))
    learner.optimizer.step()
    learner.next_step = step + 1
    learner.guard.watch(step)
    phase("between steps")


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code: 2 if refused, 3 if diverged, 75 if preempted, …"""
    about = "Train a recipe; the same words again resume it."
    return run_command(lambda: train(config.load(argv, program="lsgd.train", about=about)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
