"""Rules of Google's and NVIDIA's submissions to MLPerf Training 0.6: ResNet-50 v1.5 by LARS.

code: their folders in mlcommons/training_results_v0.6 at f312518. Google's decays the weights
twice: by LARS, and by a term of the loss.
"""

from dataclasses import dataclass

from lsgd.check.observation import Rule
from lsgd.check.papers import goyal2017, mlperf, stated
from lsgd.recipe import Recipe

TITLE = "MLPerf Training 0.6, Google and NVIDIA"
WHO = "the submissions to MLPerf 0.6"
NOTE = "table is their settings, by minibatch and images per BN statistic; code is their code."


@dataclass(frozen=True)
class Submission:
    """The settings of a submission for one minibatch."""

    lr: float
    warmup: int
    """The number of warmup epochs."""
    end_step: int | None = None
    """The step at which the decay ends; None for the last one."""
    end_lr: float = 1e-4
    eps: float = 0.0


NVIDIA = {
    (1664, 208): Submission(5, 5),
    (3328, 208): Submission(10, 5),
    (33280, 65): Submission(31.2, 25, 3003),
    (54080, 52): Submission(38, 25, 2160, end_lr=0.0),
    (59904, 39): Submission(40.7, 33, 1980, end_lr=0.0),
}
GOOGLE = {
    (4096, 128, 2e-4): Submission(10, 5, 22_536),
    (16384, 128, 2e-4): Submission(25, 5, 5634),
    (32768, 128, 2e-4): Submission(33, 25, 2983),
    (32768, 32, 1e-4): Submission(31.2, 25, 2983, eps=1e-5),
    (32768, 64, 1e-4): Submission(31.2, 25, 2983, eps=1e-5),
    (32768, 128, 1e-4): Submission(31.2, 25, 2983, eps=1e-5),
}
"""The rows of Google, also by weight decay, of which one minibatch has two."""


def rules(recipe: Recipe) -> dict[str, Rule]:
    """Return the rules of the submission for the recipe's minibatch, BN group and weight decay."""
    size, decay = (recipe.batch_size, recipe.worker_batch), recipe.optim.weight_decay
    if row := NVIDIA.get(size):
        own = _of_row(row, recipe.steps_per_epoch, equation=9) | {
            "weight_decay": stated.weight_decay("code", 2e-4, biases=True),
            "last_gamma": mlperf.RULES["last_gamma"],
        }
    elif row := GOOGLE.get((*size, decay)):
        own = _of_row(row, recipe.steps_per_epoch, equation=10) | {
            "weight_decay": Rule.unmet("code", f"{decay:g} by LARS, and as much by the loss"),
            "last_gamma": stated.last_gamma("code", 0.0),
        }
    else:
        known = [*(images for images, _ in NVIDIA), *(images for images, _, _ in GOOGLE)]
        own = {"lr_curve": stated.no_row(dict.fromkeys(known))}
    return RULES | own


def _of_row(row: Submission, steps_per_epoch: int, *, equation: int) -> dict[str, Rule]:
    until = row.end_step / steps_per_epoch if row.end_step else None
    curve = stated.by_power(row.lr, row.warmup, end=row.end_lr, until=until)
    where = f"step {row.end_step}" if row.end_step else "the end"
    text = f"from 0 to lr {row.lr:g} over {row.warmup} epochs, power 2 to {row.end_lr:g} at {where}"
    return {
        "lr_curve": stated.lr_curve("table", text, curve),
        "lars": stated.lars("code", equation=equation, m=0.9, trust=0.001, eps=row.eps),
    }


RULES = {
    **goyal2017.rules_for_section("rules", "data"),
    **stated.RESNET50_V15,
    **stated.BATCHNORM,
    **{name: mlperf.RULES[name] for name in ("augmentation", "batchnorm_decay")},
    "label_smoothing": stated.label_smoothing("code", 0.1),
    "evaluation_epochs": Rule.equals("rules", "every 4 epochs", {4}),
    "metric": stated.epochs_to("rules", 24.1),
}
