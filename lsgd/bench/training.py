"""The speeds of a loader, of the model and of both together, which show the bottleneck."""

from dataclasses import dataclass

from lsgd.bench.loaders import LoaderSetting, consume, planned_loader
from lsgd.bench.timing import Samples, estimate, measure, speed_ratio
from lsgd.inputs import Inputs
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.device import synchronize
from lsgd.learner import Learner
from lsgd.run.metrics import TimedBatches
from lsgd.step import train_step

MODEL, TOGETHER = "the model", "together"


@dataclass(frozen=True)
class FedTraining:
    """The speeds of training with a data loader, of each alone, and the waits for images."""

    loader: str
    speeds: Samples
    waiting: list[float]
    """The fraction of each round of both together in which the model waited for images."""

    def verdict(self) -> str:
        """Return a sentence that says whether the loader or the model bounds the training."""
        loader, model, both = (
            f"{estimate(self.speeds[name]).median:.0f} images/s"
            for name in (self.loader, MODEL, TOGETHER)
        )
        bounds = {
            "yes": "The model is the bottleneck",
            "no": "The loader is the bottleneck",
            "not resolved": "Which of the two is the bottleneck is not resolved",
        }[speed_ratio(self.speeds, self.loader, MODEL).compare_at_least(1)]
        return (
            f"{bounds}: {self.loader} alone delivers {loader}, the model alone takes {model}; "
            f"together they reach {both}, with a data wait of "
            f"{estimate(self.waiting).median:.0%} of the time."
        )


def measure_training(
    common: LoaderSetting, name: str, inputs: Inputs, *, rounds: int, steps: int
) -> FedTraining:
    """Measure a loader alone, training alone, and both together, in rounds of `steps` steps."""
    recipe, device = common.recipe, common.device
    learner = Learner(recipe, common.comm, device)
    plan = [
        [
            task
            for step in range(number * steps, (number + 1) * steps)
            for task in learner.strategy.tasks(recipe.locate_step(step)[0], [step])
        ]
        for number in range(rounds + 1)
    ]
    passes = [[each for task in of_round for each in task.micro_batches] for of_round in plan]
    images = [sum(len(each.examples) for each in of_round) for of_round in passes]
    on_device = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    waited = [0.0] * (rounds + 1)

    def train(source: Inputs, number: int) -> float:
        """Train for a round and return the seconds that training waited for images."""
        batches = TimedBatches(source.train(passes[number]))
        for task in plan[number]:
            train_step(learner, task, batches)
        synchronize(device)
        return batches.waited

    def model(number: int) -> int:
        train(on_device, number)
        return images[number]

    def together(number: int) -> int:
        waited[number] = train(inputs, number)
        return images[number]

    alone = planned_loader(inputs, passes)
    speeds = measure(
        {name: lambda number: consume(alone(number), device), MODEL: model, TOGETHER: together},
        rounds,
        what="training",
    )
    counted = zip(waited[1:], images[1:], speeds[TOGETHER], strict=True)
    return FedTraining(name, speeds, [seconds * speed / count for seconds, count, speed in counted])
