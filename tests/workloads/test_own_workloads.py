"""Workloads and metrics of one's own: what is refused before a run, and what they compute."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.launching import fork_command

from lsgd.comm.single import SingleComm
from lsgd.config import from_saved, load_recipe, to_yaml
from lsgd.errors import UsageError
from lsgd.evaluation import evaluate
from lsgd.export.network import build_exported_network, load_for_export
from lsgd.learner import Learner
from lsgd.models.randomness_guard import RandomnessGuard, _dropout_rate
from lsgd.recipe import Recipe
from lsgd.recipe.reference import option_list
from lsgd.rules.sampler import MicroBatch
from lsgd.run import checkpoint
from lsgd.step import train_step
from lsgd.workloads import compute_metrics, open_training_inputs, open_workload
from lsgd.workloads.images import ImageClassification

CPU = torch.device("cpu")
MODULE = '''
import random
import numpy as np
import torch
from torch import nn
from lsgd.parts import OwnWorkload
from lsgd.rules.averaging import MovingAverage


class Sums(OwnWorkload):
    """Learn the sum of two numbers."""

    metric_names = ("rmse", "far_error")
    count_names = ("numbers", "far")

    def __init__(self, recipe, device, *, kind="right", rows: int = 1):
        super().__init__(recipe, device)
        self.kind, self.rows = kind, rows
        if kind == "no counts": self.count_names = ()
        if kind == "test set": self.evaluation_sets = ("test",)
        if kind == "empty set": self.evaluation_sets = ("val", "test")
        if kind == "train set": self.evaluation_sets = ("val", "train")
        if kind == "one set twice": self.evaluation_sets = ("val", "test", "test")
        if kind == "shares": self.example_weights = np.full(recipe.train_examples, 0.5)
        if kind == "no weights": self.example_weights = np.zeros(recipe.train_examples, np.int64)
        if kind == "rare weights": self.example_weights = np.int64(np.arange(64) % 3 == 0)
        if kind == "few weights": self.example_weights = np.ones(3, np.int64)

    def evaluation_examples(self, split):
        return 0 if (split, self.kind) in (("test", "empty set"), ("val", "no set")) else 9

    def make_network(self):
        if self.kind == "no network": raise OSError("no disk")
        norm = nn.BatchNorm3d(4) if self.kind == "volumes" else nn.BatchNorm1d(4)
        if self.rows > 1: norm = nn.Sequential(nn.Unflatten(1, (self.rows, -1)), nn.Flatten(0, 1),
                                               nn.BatchNorm1d(4 // self.rows), Merge(self.rows))
        if self.kind == "moving": norm = Moving()
        if self.kind == "sparse": norm.register_buffer("links", torch.eye(3).to_sparse())
        if self.kind == "images": norm = nn.Sequential(nn.Unflatten(1, (1, 2, 2)),
                                                       nn.BatchNorm2d(1), nn.Flatten())
        return nn.Sequential(nn.Linear(2, 4), norm, nn.Dropout(0.5), nn.Linear(4, 1))

    def open_inputs(self):
        return Numbers(self.dtype)

    def loss(self, model, batch, each):
        if self.kind == "fails": raise IndexError("too few")
        far = (model(batch).squeeze(1) - batch.sum(1)).square()
        if self.kind == "small mean": far = 1e-5 * far
        if self.kind == "contrast" and each.split == "train": far = far * far.flip(0)
        if self.kind == "rounded": far = far.double() * (1 + 1e-9 * len(batch))
        if self.kind == "nan" and each.examples[-1] == 1: far = far * np.nan
        loss = far.mean() if "mean" in self.kind else far if self.kind == "each" else far.sum()
        counts = torch.tensor([len(batch), int((far > 1).sum())])
        if self.kind == "uncounted" and each.split == "train": counts[0] = 0
        return loss, counts.float() if self.kind == "floats" else counts

    def metrics(self, loss, counts):
        if self.kind == "other": return {"rmse": loss}
        if self.kind == "no number": return {"rmse": loss, "far_error": np.nan}
        if self.kind == "numpy": return {"rmse": np.sqrt(loss), "far_error": np.float32(counts[1])}
        return {"rmse": loss**0.5, "far_error": 100 * counts[1] / counts[0]}


class Accurate(Sums):
    metric_names = ("accuracy", "rmse")

    def metrics(self, loss, counts):
        return {"accuracy": 1 - counts[1] / counts[0], "rmse": loss**0.5}


class Beside(Accurate):
    metric_names = ("rmse", "accuracy")


class Merge(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        return x.unflatten(0, (-1, self.rows)).flatten(1)


class Numbers:
    name = "numbers"

    def __init__(self, dtype):
        self.dtype = dtype

    def columns(self):
        return {}

    def train(self, passes):
        for each in passes:
            ids = torch.from_numpy(each.examples).float()
            yield torch.stack((ids.sin(), ids.cos()), 1).to(self.dtype)

    evaluation = train


class Nameless(Sums):
    def open_inputs(self):
        return Unnumbered(self.dtype)


class Unnumbered(Numbers):
    name = ""


class Averaged(Sums):
    """Sums, evaluated with weights that carried_states averages."""

    def carried_states(self, model, hosted, comm):
        self.average = MovingAverage(model, 2.0, 1)
        return (*super().carried_states(model, hosted, comm), self.average)

    def evaluation_mode(self, model, inputs):
        return self.average.swapped_in()


class Drawing(Sums):
    """Sums, whose network has a further layer, or whose loss draws random numbers."""

    def __init__(self, recipe, device, *, layer="", in_loss=False):
        super().__init__(recipe, device)
        self.layer, self.in_loss = layer, in_loss

    def make_network(self):
        layers = {"lstm": Recurrent(0.5), "attention": Attention(0.5), "still lstm": Recurrent(0.0),
                  "still attention": Attention(0.0), "time first": TimeFirst(),
                  "random": Thrown("random"), "numpy": Thrown("numpy"), "seeded": Thrown("seeded"),
                  "drawn": Drawn(),
                  "alpha": nn.AlphaDropout(0.5), "channels": nn.Dropout1d(0.5), "rrelu": nn.RReLU()}
        network = super().make_network()
        network[2] = layers.get(self.layer, nn.Identity())
        return network

    def loss(self, model, batch, each):
        noisy = nn.functional.dropout(batch, 0.5, training=self.in_loss and each.split == "train")
        return super().loss(model, noisy, each)


class TwoSets(Sums):
    evaluation_sets = ("val", "test")
    evaluation_examples = OwnWorkload.evaluation_examples


class Recurrent(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, batch_first=True, dropout=rate)

    def forward(self, x):
        return self.lstm(x[:, None])[0][:, 0]


class Attention(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=rate, batch_first=True)

    def forward(self, x):
        return self.attention(*[x[:, None]] * 3)[0][:, 0]


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training: self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Thrown(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        if not self.training: return x
        if self.by == "seeded": random.seed(0)
        return x * (np.random.rand() if self.by == "numpy" else random.random())


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_python, self.by_numpy = (nn.Parameter(torch.tensor(draw()))
                                         for draw in (random.random, np.random.rand))

    def forward(self, x):
        return self.by_python * self.by_numpy * x


class Pictures(nn.Module):
    def __init__(self, classes, layer: str = "drawn"):
        super().__init__()
        self.linear = nn.Linear(64, classes)
        self.last, self.layer = Drawn() if layer == "drawn" else Thrown(layer), layer
        if layer == "sparse": self.register_buffer("links", torch.eye(3).to_sparse())

        if layer == "clipped":
            self.linear.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def forward(self, x):
        x = self.linear(x.flatten(1))
        if self.layer == "centred": return x - x.mean(0)
        return x if self.layer == "clipped" else self.last(x)


class TimeFirst(nn.Module):
    """Dropout on (time, examples, width), with as many times as examples of two."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(torch.stack((x, x)))[0]


class Unfinished(OwnWorkload):
    metric_names = ("rmse",)


class Unnamed(Sums):
    metric_names = ("RMSE",)


class WrongError:
    def __init__(self, classes, *, kind="right"):
        self.kind, self.count_names = kind, ("images", "wrong")

    def counts(self, logits, labels):
        if self.kind == "fails": raise IndexError("too few")
        wrong = (logits.argmax(1) != labels).sum()
        counts = torch.stack((torch.tensor(len(labels)), wrong))
        if self.kind == "mean": return 100 * counts // len(labels)
        if self.kind == "floats": return counts.double()
        return counts[:1] if self.kind == "one" else counts

    def value(self, counts):
        if self.kind == "no right": return 100 * counts[1] / (counts[0] - counts[1])
        if self.kind == "no number": return float("inf")
        return 100 * counts[1] / counts[0]


class Top1Error(WrongError):
    pass


class MacroF1(WrongError):
    pass


class Größe(WrongError):
    pass
'''
RECIPE = """
# The sum of two numbers.
defaults: [digits, {override /data: null}, {override /model: null}]
name: sums
data: {name: numbers, train_examples: 64, val_examples: 9, classes: 1, workload: "own_task:Sums"}
model: {name: own}
workers: 4
worker_batch: 4
workers_per_pass: 2
epochs: 3
schedule: {reference_batch: 16, milestones: []}
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with the workload and the metric, and a recipe in the current folder."""
    (tmp_path / "own_task.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "sums.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    yield
    sys.modules.pop("own_task", None)


def sums(*overrides: str) -> Recipe:
    return load_recipe(["recipe=./sums.yaml", *overrides])


def learned(recipe: Recipe) -> Learner:
    """The learner of a recipe after its first step."""
    learner = Learner(recipe, SingleComm(), CPU)
    [task, *_] = learner.strategy.tasks(0, [0])
    train_step(learner, task, open_workload(recipe, CPU).inputs().train(task.micro_batches))
    learner.strategy.synchronize()
    return learner


def test_a_step_does_not_depend_on_the_micro_batches() -> None:
    """Batch norm is of each worker, and dropout of each example."""
    recipe = sums("precision=float64")
    states = [learned(replace(recipe, workers_per_pass=k)).model.state_dict() for k in (1, 4)]
    torch.testing.assert_close(*states, rtol=0, atol=1e-12)
    assert states[0]["1.running_mean"].abs().min() > 0
    workload = open_workload(recipe, CPU)
    shares = [workload.evaluation_micro_batches("val", rank, 2) for rank in range(2)]
    found = np.concatenate([each.examples for share in shares for each in share])
    assert sorted(found) == [*range(9)]
    assert sorted(workload.example_order(1)) == [*range(64)]
    assert workload.metric.format_labelled(1.5) == "rmse 1.50"


def test_opening_the_inputs_keeps_the_carried_states_of_the_model() -> None:
    """The workload keeps the average of the trained model, which its evaluation uses."""
    recipe = sums("data.workload=own_task:Averaged")
    learner = learned(recipe)
    fresh = evaluate(learner, open_workload(recipe, CPU).inputs())
    assert evaluate(learner, learner.workload.inputs()) == fresh


def test_options_and_source_are_in_the_fingerprint() -> None:
    recipe = sums()
    assert recipe.data.workload_options == {"kind": "right", "rows": 1}
    assert sums("data.workload_options.rows=1").fingerprint == recipe.fingerprint
    changed = replace(recipe.data, workload_source="0" * 64)
    others = [sums("data.workload_options.rows=2"), replace(recipe, data=changed)]
    assert len({each.fingerprint for each in (recipe, *others)}) == 3
    assert option_list("data.workload=own_task:Sums").splitlines() == [
        "data.workload=own_task:Sums",
        "    Learn the sum of two numbers.",
        "data.workload_options.kind=right   [a text]",
        "data.workload_options.rows=1   [a whole number]",
    ]
    digits = load_recipe(["recipe=digits"])
    own = load_recipe(["recipe=digits", "metric.name=own_task:WrongError"])
    assert own.fingerprint != digits.fingerprint


def test_a_dry_run_keeps_the_data_and_the_network() -> None:
    dry = sums("dry_run=true", "keep_best=rmse", "metric.epochs_to.rmse=0.1")
    assert (dry.data, dry.worker_batch) == (sums().data, 4)
    assert "data, network and worker_batch stay those of own_task:Sums" in dry.summary()
    jumping = sums("dry_run=true", "schedule=points", "schedule.points=[[0,0.1],[1,0]]")
    assert "sides of the first drop and of each point of the lr" in jumping.summary()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.name=small_resnet"], "data.workload=own_task:Sums makes its network itself, and"),
        (["inputs=memory"], "inputs=memory has no effect with data.workload=own_task:Sums, which"),
        (["data.image_size=8"], "data.image_size=8 has no effect with data.workload=own_task:Sums"),
        (["keep_best=top1_error"], "keep_best=top1_error is not a metric of data.workload=own_"),
        (["metric.epochs_to.f=1"], r"metric.epochs_to.f is not a metric .* loss, rmse, far_error"),
        (["data.workload_options.row=2"], "did you mean data.workload_options.rows?"),
        (["data.workload=own_task:Unnamed"], r"has metric_names=\('RMSE',\); write a tuple of nam"),
        (["data.workload=own_task:WrongError"], "is not a lsgd.parts.OwnWorkload; write a cl"),
        (["metric.name=own_task:WrongError"], "has no effect with data.workload=own_task:Sums"),
        (["metric.stop=true"], "metric.stop=true has no target to stop at"),
    ],
)
def test_what_does_not_fit_the_workload_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sums(*words)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no counts", r"has count_names=\(\); write a tuple"),
        ("test set", r"has evaluation_sets=\('test',\); write a tuple of .* the first 'val'"),
        ("train set", r"has evaluation_sets=\('val', 'train'\); write a tuple of different names"),
        ("one set twice", r"has evaluation_sets=\('val', 'test', 'test'\); write a tuple of dif"),
        ("nan", "has a loss of nan for validation example 1; correct the example, or return"),
        ("empty set", "has 0 examples in its evaluation set test, of .*; return the number of"),
        ("no set", "has 0 examples in its evaluation set val, of which there is no mean loss"),
        ("shares", r"has example_weights of shape \(64,\) and float64; write an int64 array of"),
        ("no weights", "has example_weights of 0 for all examples of an update in epoch 0, who"),
        ("few weights", r"has example_weights of shape \(3,\) and int64; .* of shape \(64,\)"),
        ("no network", r"fails in make_network \(OSError: no disk\); fix it"),
        ("volumes", "normalises by BatchNorm3d in 1, which may mix the examples"),
        ("fails", r"fails on the first 2 validation examples \(IndexError: too few\); fix it"),
        ("each", r"returns a loss of shape \(2,\) and counts of shape \(2,\)"),
        (
            "floats",
            r"returns a loss of shape \(\) and counts of shape \(2,\) of torch.float32; ret",
        ),
        ("small mean", "has a loss of .*, which alone have .* in sum; return sums over"),
        ("mean", "has a loss of .*, which alone have .* in sum; return sums over the examples"),
        ("contrast", "has a loss of .* for 2 training examples, which alone have .*; return sums"),
        ("moving", "changes the buffer 1.mean of the network in every forward pass, so that the"),
        ("other", r"returns the metrics rmse, and has metric_names=\('rmse', 'far_error'\)"),
    ],
)
def test_a_broken_workload_is_one_sentence(kind: str, message: str) -> None:
    recipe = sums(f"data.workload_options.kind='{kind}'")
    with pytest.raises(UsageError, match=f"data.workload=own_task:Sums {message}"):
        open_workload(recipe, CPU).inputs()


def test_a_loss_in_float64_has_the_rounding_of_the_network() -> None:
    open_workload(sums("data.workload_options.kind=rounded"), CPU).inputs()


def test_a_sparse_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1\.links of the network is a sparse tensor, which a"):
        open_workload(sums("data.workload_options.kind=sparse"), CPU).inputs()


def test_an_update_has_an_example_with_a_weight() -> None:
    """A third of the examples has one: each step, but not each share of a worker."""
    words = ["data.workload_options.kind='rare weights'"]
    open_workload(sums(*words), CPU).inputs()
    with pytest.raises(UsageError, match="has example_weights of 0 for all examples of an"):
        open_workload(sums(*words, "strategy=async"), CPU).inputs()


def test_a_further_set_has_a_size_of_its_own() -> None:
    workload = open_workload(sums("data.workload=own_task:TwoSets"), CPU)
    assert sum(len(e.examples) for e in workload.evaluation_micro_batches("val", 0, 1)) == 9
    with pytest.raises(UsageError, match=r"override evaluation_examples\(split\) for test, or"):
        workload.inputs()


def test_an_epoch_in_which_nothing_counts_has_no_mean_loss() -> None:
    learner = learned(sums("data.workload_options.kind=uncounted"))
    with pytest.raises(UsageError, match="the loss counts 0 numbers in all examples of an epoch"):
        learner.scores(learner.summed_counts())


@pytest.mark.parametrize(
    ("recipe", "part", "metric"),
    [
        ("./sums.yaml", "data.workload=own_task:Sums", "far_error=nan"),
        ("digits", "metric.name=own_task:WrongError", "wrong_error=inf"),
    ],
)
def test_a_metric_without_a_number_ends_an_evaluation_and_no_training(
    recipe: str, part: str, metric: str
) -> None:
    """Its row would make the finished run unreadable; a train row has null for it."""
    options = "data.workload_options" if part.startswith("data") else "metric.options"
    words = [f"recipe={recipe}", part, f"{options}.kind='no number'"]
    workload = open_workload(load_recipe(words), CPU)
    counts = torch.tensor([4] * len(workload.count_names))
    sums = {"counts": counts, "loss": torch.tensor(1.0)}
    name, value = metric.split("=")
    assert repr(compute_metrics(workload, sums, "train").metrics[name]) == value
    with pytest.raises(UsageError, match=f"{part} has {metric} with the counts .* of the set val"):
        compute_metrics(workload, sums, "val")
    # With weights that are no numbers the run stays readable, by a metric worse than any other.
    worst = compute_metrics(workload, sums | {"loss": torch.tensor(torch.nan)}, "val").metrics
    assert worst[name] == 100
    if "rmse" in worst:
        assert 1e200 < worst["rmse"] < torch.inf


def test_metrics_of_numpy_are_plain_numbers() -> None:
    """Those of numpy are in no checkpoint that can be read, and some in no row."""
    workload = open_workload(sums("data.workload_options.kind=numpy"), CPU)
    sums_ = {"counts": torch.tensor([4, 1]), "loss": torch.tensor(16.0)}
    metrics = compute_metrics(workload, sums_, "val").metrics
    assert metrics == {"loss": 4, "rmse": 2, "far_error": 1}
    assert {*map(type, metrics.values())} == {float}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["recipe=./sums.yaml", "data.workload=own_task:Accurate"], "accuracy_error"),
        (["recipe=./sums.yaml", "data.workload=own_task:Beside", "keep_best=accuracy"], "accuracy"),
        (["recipe=digits", "metric.name=own_task:MacroF1"], "macro_f1_error"),
    ],
)
def test_a_new_run_is_judged_by_no_metric_whose_highest_value_is_the_best(
    words: list[str], fix: str, tmp_path: Path
) -> None:
    recipe = load_recipe([*words, f"run_dir={tmp_path}"])
    with pytest.raises(UsageError, match=f"judged by the lowest; return .* under the name {fix}"):
        open_training_inputs(recipe, CPU)
    open_workload(recipe, CPU).inputs()  # as `lsgd evaluate` does, wherever the folder is now
    (tmp_path / "config.yaml").write_text(to_yaml(recipe))
    open_training_inputs(recipe, CPU)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_metric_that_fails_is_one_sentence(split: str) -> None:
    words = ["metric.name=own_task:WrongError", "metric.options.kind='no right'"]
    workload = open_workload(load_recipe(["recipe=digits", *words]), CPU)
    sums = {"counts": torch.tensor([4, 0, 0, 4, 4]), "loss": torch.tensor(1.0)}
    with pytest.raises(
        UsageError, match=rf"WrongError fails with .* {split} \(ZeroDivisionError: "
    ):
        compute_metrics(workload, sums, split)


def test_an_unfinished_workload_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Unfinished cannot be made with .*abstract"):
        open_workload(sums("data.workload=own_task:Unfinished"), CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("layer=alpha", r"in 2 \(bernoulli"),
        ("layer=channels", "in 2 "),
        ("layer=rrelu", "in 2 "),
        ("layer=lstm", r"in 2.lstm "),
        ("layer=attention", r"in 2.attention "),
        ("in_loss=true", "in its own forward pass "),
        ("layer=random", r"in its own forward pass \(random\)"),
        ("layer=numpy", r"in its own forward pass \(numpy.random\)"),
    ],
)
def test_draws_from_global_generators_are_refused(options: str, message: str) -> None:
    """They depend on the earlier micro-batches of the process."""
    recipe = sums("data.workload=own_task:Drawing", f"data.workload_options.{options}")
    message = f"own_task:Drawing draws random numbers {message}.*; set their rate to 0 and use nn"
    with pytest.raises(UsageError, match=message):
        open_workload(recipe, CPU).inputs()


@pytest.mark.parametrize("layer", ["still lstm", "still attention", "seeded"])
def test_layers_that_drop_nothing_are_kept(layer: str) -> None:
    recipe = sums("data.workload=own_task:Drawing", f"data.workload_options.layer='{layer}'")
    assert open_workload(recipe, CPU).inputs().name


@pytest.mark.parametrize("own", ["workload", "network"])
def test_weights_of_global_generators_are_a_function_of_the_seed(own: str) -> None:
    """Every process builds the network for itself."""
    kept = random.getstate()

    def weights(seed: int) -> list[float]:
        words = [f"seed={seed}"]
        if own == "network":
            made = load_recipe(["recipe=digits", "model=own_task:Pictures", *words])
        else:
            words += ["data.workload=own_task:Drawing", "data.workload_options.layer=drawn"]
            made = sums(*words)
        state = open_workload(made, CPU).network().state_dict()
        return [float(value) for name, value in state.items() if ".by_" in name]

    assert weights(1) == weights(1)
    assert len({*weights(1), *weights(2)}) == 4
    assert random.getstate() == kept


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("random", r"draws random numbers in its own forward pass \(random\), which .*; set their"),
        ("numpy", r"draws random numbers in its own forward pass \(numpy.random\), which"),
        ("centred", "logits of an image also from the other images of a micro-batch, so that"),
        ("sparse", "links of the network is a sparse tensor, which a checkpoint cannot hold; make"),
    ],
)
def test_a_network_of_ones_own_is_checked(layer: str, message: str) -> None:
    recipe = load_recipe(
        ["recipe=digits", "model=own_task:Pictures", f"model.options.layer={layer}"]
    )
    with pytest.raises(UsageError, match=message):
        open_workload(recipe, CPU).inputs()


@pytest.mark.parametrize("change", ["strategy=async", "workers=1"])
def test_hooks_do_not_clip_gradients_of_micro_batches(change: str) -> None:
    """An evaluation takes the network of an older run, and the gradient of a worker may be any."""
    own = ["recipe=digits", "model=own_task:Pictures", "model.options.layer=clipped"]
    recipe = load_recipe(own)
    open_workload(recipe, CPU).inputs()
    refused = "^model=own_task:Pictures has a hook on the gradient of linear.weight .*optim.clip_"
    with pytest.raises(UsageError, match=refused):
        open_training_inputs(recipe, CPU)
    open_training_inputs(load_recipe([*own, change]), CPU)


def test_a_loader_without_a_name_has_that_of_its_class() -> None:
    workload = open_workload(sums("data.workload=own_task:Nameless"), CPU)
    assert workload.inputs().name == "Unnumbered"


def test_a_generator_that_the_workload_seeds_may_draw() -> None:
    """By the examples, for instance; only what torch's own generator draws depends on the rest."""
    shown: list[str] = []
    network = torch.nn.Linear(1, 1)
    for allows in (True, False):
        guard = RandomnessGuard("data.workload=a:B", "do", network, set(), allows_generators=allows)
        with guard:
            try:
                torch.rand(1, generator=torch.Generator().manual_seed(7))
            except UsageError as error:
                shown.append(f"{allows}: {error}")
            with pytest.raises(UsageError):
                torch.rand(1)
    assert [text.partition(" ")[0] for text in shown] == ["False:"]


def test_an_lstm_on_a_gpu_draws_nothing_without_dropout() -> None:
    lstm = torch.ops.aten._cudnn_rnn.default
    names = [argument.name for argument in lstm._schema.arguments]
    values = [0.0 if name == "dropout" else None for name in names]
    assert _dropout_rate(lstm, values, {}) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.workload_options.rows=2", "4 rows for 2 examples to WorkerBatchNorm1d in 1.2, "),
        # Two rows for two examples, and for one.
        (
            "data.workload=own_task:Drawing data.workload_options.layer='time first'",
            "2 rows for 1 example to CounterBasedDropout in 2.dropout, which cannot tell whose",
        ),
    ],
)
def test_rows_that_are_not_examples_are_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_workload(sums(*words.split(" ", 1)), CPU).inputs()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("worker_batch=1 workers=16", "worker_batch=1 gives a worker a single example, and BN"),
        ("tail=keep worker_batch=7", r"tail=keep leaves .* a single example \(64 = 2 x 28 \+ 8\)"),
        ("tail=drop worker_batch=7", ""),
        ("worker_batch=1 workers=16 data.workload_options.kind=images", ""),
    ],
)
def test_batch_norm_over_one_value_is_refused(words: str, message: str) -> None:
    workload = open_workload(sums("schedule.warmup=none", *words.split()), CPU)
    if not message:
        workload.inputs()
        return
    with pytest.raises(UsageError, match=message):
        workload.inputs()


def test_a_saved_workload_is_not_imported() -> None:
    recipe = sums("keep_best=rmse")
    from dataclasses import asdict

    sys.modules.pop("own_task")
    assert from_saved(asdict(recipe)) == recipe
    assert "own_task" not in sys.modules


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fails", r"fails on 12 made-up images \(IndexError: too few\); fix it"),
        ("mean", "has counts of 12 images that are not the sum of those of the first 5"),
        ("floats", r"returns counts of shape \(2,\) of torch.float64, and has 2 count_names"),
        ("one", r"returns counts of shape \(1,\) of torch.int64, and has 2 count_names"),
    ],
)
def test_a_metric_of_no_sums_is_refused(kind: str, message: str) -> None:
    words = ["metric.name=own_task:WrongError", f"metric.options.kind={kind}"]
    with pytest.raises(UsageError, match=f"metric.name=own_task:WrongError {message}"):
        open_workload(load_recipe(["recipe=digits", *words]), CPU)


def test_a_metric_has_a_name_of_its_own() -> None:
    with pytest.raises(
        UsageError, match="would have the name 'top1_error' in rows, which lsgd has"
    ):
        load_recipe(["recipe=digits", "metric.name=own_task:Top1Error"])
    with pytest.raises(UsageError, match="would have the name 'größe' in rows, which is not of"):
        load_recipe(["recipe=digits", "metric.name=own_task:Größe"])
    with pytest.raises(UsageError, match="keep_best=own_error is not a metric of these runs"):
        load_recipe(["recipe=digits", "keep_best=own_error"])


def test_a_metric_of_ones_own_judges_the_run() -> None:
    """Beside those of lsgd, of whose counts it takes nothing away."""
    recipe = load_recipe(
        ["recipe=digits", "metric.name=own_task:WrongError", "keep_best=wrong_error"]
    )
    workload = open_workload(recipe, CPU)
    assert isinstance(workload, ImageClassification)
    logits, labels = torch.eye(4, 10), torch.tensor([0, 1, 2, 5])
    model = torch.nn.Identity()
    _, counts = workload.loss(model, (logits, labels), MicroBatch(None, np.arange(4), split="val"))
    scores = workload.metrics(1.0, counts.tolist())
    assert (counts[:2].tolist(), counts[3:].tolist()) == ([4, 3], [4, 1])
    assert scores["top1_error"] == scores["wrong_error"] == 25
    assert workload.count_names[3:] == ("wrong_error: images", "wrong_error: wrong")
    assert workload.metric.format_labelled(25) == "wrong error 25.00 %"


@pytest.mark.slow
def test_the_code_that_an_export_prints_loads_the_network(tmp_path: Path) -> None:
    """In a fork that has not imported the workload, which that code does."""
    pytest.importorskip("safetensors")
    learner = Learner(sums(), SingleComm(), CPU)
    (tmp_path / "run").mkdir()
    checkpoint.write(learner.checkpoint(), tmp_path / "run")
    (tmp_path / "run/config.yaml").write_text(to_yaml(learner.recipe))
    folder = tmp_path / "run"
    exported = build_exported_network(folder, *load_for_export(folder, (), "safetensors"))
    code = "import json, torch, lsgd.workloads, lsgd.config; from pathlib import Path; "
    code += f"RUN = Path('run'); print(json.dumps([*{exported.constructor_code}.state_dict()]))"
    run = [*fork_command(), "-c", code]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    names = subprocess.run(run, stdout=subprocess.PIPE, check=True, cwd=tmp_path, env=environment)
    assert json.loads(names.stdout) == [*exported.network.state_dict()]
