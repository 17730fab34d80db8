"""The training step, as training, autotune, lsgd.check and the benchmarks make it."""

from collections.abc import Iterator

from torch.nn import functional as F

from lsgd.inputs import Batch
from lsgd.job import preemption
from lsgd.learner import Learner
from lsgd.rules import optim, sampler
from lsgd.rules.sampler import Pass


def train_step(learner: Learner, step: int, passes: list[Pass], batches: Iterator[Batch]) -> None:
    """One step of the run: the passes of this process, whose images come next in `batches`."""
    recipe, device = learner.recipe, learner.device
    step_of_epoch = step % recipe.steps_per_epoch
    examples = sampler.step_size(recipe.data.train_examples, recipe.batch_size, step_of_epoch)

    learner.reducer.start(examples, len(passes), leave=preemption.told())
    for each in passes:
        images, labels = next(batches)
        images = images.to(device, learner.dtype, memory_format=learner.layout, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        learner.running.start_pass(each.workers)
        with learner.autocast():
            logits = learner.model(images)
        # Summed, not averaged: the reducer divides by the examples of all processes (remark 3).
        loss = F.cross_entropy(logits.to(learner.dtype), labels, reduction="sum")
        learner.tally.add(loss, logits, labels)
        learner.reducer.backward(loss)
    learner.reducer.finish()

    # Once per step, whatever the passes; in a short last step only the first workers have images.
    learner.running.end_step(active_workers=-(-examples // recipe.worker_batch))
    optim.set_lr(learner.optimizer, recipe.lr(step))
    learner.optimizer.step()  # which skips the update where found_inf is 1
    learner.next_step = step + 1
    learner.guard.watch(step)  # reads the flags a step late, so that the host never waits for them
