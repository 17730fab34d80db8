"""What a Python program imports is there, says what it does, and hears what a run writes."""

import gc
import inspect
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lsgd import api, config, train
from lsgd.fold import Graph
from lsgd.job import device
from lsgd.job.preemption import SIGNALS
from lsgd.run.rows import read_rows

RECIPE = [
    "batch_size", "lr_batch", "steps_per_epoch", "total_steps", "lr", "first_step", "fingerprint",
]  # fmt: skip
SHORT = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5", "log_steps=2"]


def recipe(folder: Path, *words: str) -> api.Recipe:
    return api.load_recipe("+recipe=digits", *SHORT, f"run_dir={folder}", *words)


def test_what_there_is() -> None:
    """These names stay, and each says for itself what it is."""
    assert api.__all__ == [
        "DivergedError", "ExitError", "PreemptedError", "Recipe", "Row", "Run", "Scores",
        "UsageError", "evaluate", "load_recipe", "read_runs", "train",
    ]  # fmt: skip
    for name in api.__all__:
        assert getattr(api, name).__doc__, name


def test_signatures_are_those_of_before() -> None:
    """New names and parameters with defaults may come: they get their line in the golden file."""
    lines = []
    for name in api.__all__:
        thing = getattr(api, name)
        if not isinstance(thing, type):
            is_function = inspect.isfunction(thing)
            lines.append(f"{name}{inspect.signature(thing)}" if is_function else f"{name}: {thing}")
        elif issubclass(thing, Exception):
            lines.append(f"{name}({thing.__base__.__name__}): exit_code")
        elif thing is api.Recipe:  # its fields are pinned by fingerprints
            lines += [f"{name}.{member}" for member in RECIPE]
            assert all(hasattr(thing, member) for member in RECIPE)
        else:
            members = {each for each in vars(thing) if not each.startswith("_")}
            members |= set(getattr(thing, "__dataclass_fields__", ()))
            lines += [f"{name}.{member}" for member in sorted(members)]
    golden = Path(__file__).parents[1] / "golden/api.txt"
    assert "\n".join(lines) + "\n" == golden.read_text()


def test_names_of_before_still_mean_the_same() -> None:
    with pytest.warns(DeprecationWarning, match="lsgd.api.Refused is now lsgd.api.UsageError"):
        assert api.Refused is api.UsageError
    with pytest.warns(DeprecationWarning, match="is now"):
        assert (api.Diverged, api.EndsEarly) == (api.DivergedError, api.ExitError)
    with pytest.warns(DeprecationWarning, match="is now"):
        assert api.Preempted is api.PreemptedError
    scores = api.Scores({"images": 1}, {"loss": 2.0})
    with pytest.warns(DeprecationWarning, match="Scores.metrics"):
        assert scores.rates == scores.metrics
    assert Graph.of is Graph.record


def test_a_recipe_is_that_of_the_command_line(tmp_path: Path) -> None:
    words = ["+recipe=digits", "seed=3"]
    assert api.load_recipe(*words) == config.load_recipe(words)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is over, which is left as it is."""
    folder = tmp_path_factory.mktemp("finished")
    api.train(recipe(folder / "run"))
    return folder


@pytest.mark.slow
def test_every_row_is_heard_once_as_it_is_written(tmp_path: Path) -> None:
    """And nobody hears the next run."""
    file, heard = tmp_path / "run" / "metrics.jsonl", []

    def on_row(row: dict[str, Any]) -> None:
        assert read_rows(file)[-1] == row
        heard.append(row)

    error = api.train(recipe(tmp_path / "run"), on_row=on_row)
    assert heard == read_rows(file)
    assert heard[-1]["val_top1_error"] == api.read_runs(tmp_path)[0].epochs[2]["val_top1_error"]
    assert error == api.read_runs(tmp_path)[0].final_metric
    count = len(heard)
    train.train(recipe(tmp_path / "other", "epochs=1", "schedule.milestones=[]"))
    assert len(heard) == count


@pytest.mark.slow
def test_a_listener_may_end_a_run_which_goes_on_where_it_was_saved(
    tmp_path: Path, finished: Path
) -> None:
    class Enough(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["kind"] == "epoch":
            raise Enough

    with pytest.raises(Enough):
        api.train(recipe(tmp_path / "run"), on_row=stop)
    again: list[dict[str, Any]] = []
    error = api.train(recipe(tmp_path / "run"), on_row=again.append)
    assert error == api.read_runs(finished)[0].final_metric
    [run] = api.read_runs(tmp_path / "run")
    assert (run.state, len(run.epochs)) == ("finished", 2)
    assert again[0]["kind"] == "start"


@pytest.mark.slow
def test_the_process_is_left_as_it_was(tmp_path: Path, finished: Path) -> None:
    """A program goes on with its own threads, random numbers, kernels and signals."""

    def state() -> list[Any]:
        flags = [getattr(module, name) for module, name in device.KERNEL_FLAGS]
        handlers = [signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)]
        cores, drawn = os.sched_getaffinity(0), torch.get_rng_state().tolist()
        return [torch.get_num_threads(), gc.isenabled(), drawn, cores, *flags, *handlers]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.backends.cudnn.benchmark = not (benchmark := torch.backends.cudnn.benchmark)
        before = state()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            error = api.train(recipe(tmp_path / "run"))
            scores = api.evaluate(finished / "run")
        assert state() == before
        [run] = api.read_runs(finished)
        assert error == run.final_metric
        assert scores["val"].metrics["loss"] == run.rows[-1]["val_loss"]
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark


@pytest.mark.slow
def test_threads_load_recipes_at_once() -> None:
    """Hydra's state belongs to the whole process."""
    names, interval = ["digits", "bs256", "bs8k"] * 4, sys.getswitchinterval()

    def load(number: int) -> api.Recipe:
        return api.load_recipe(f"+recipe={names[number]}", f"log_steps={number + 1}")

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            loaded = list(pool.map(load, range(len(names))))
    finally:
        sys.setswitchinterval(interval)
    assert [(recipe.name, recipe.log_steps) for recipe in loaded] == [
        (name, number) for number, name in enumerate(names, 1)
    ]


@pytest.mark.slow
def test_how_a_run_ends_is_raised(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(api.UsageError, match="there is no key 'worker'"):
        api.load_recipe("+recipe=digits", "worker=3")
    with pytest.raises(
        api.UsageError, match=r"holds another run .* with seed=0, this .* with seed=1\); write"
    ):
        api.train(recipe(finished / "run", "seed=1"))
    with pytest.raises(api.UsageError, match="not a folder"):
        api.read_runs(tmp_path / "nowhere")
    heard: list[dict[str, Any]] = []
    with pytest.raises(api.DivergedError):
        api.train(
            recipe(tmp_path / "wild", "schedule.reference_lr=1e9", "schedule.warmup=none"),
            on_row=heard.append,
        )
    assert heard[-1]["kind"] == "diverged"


def test_an_evaluation_is_that_of_the_command(finished: Path) -> None:
    [run] = api.read_runs(str(finished))
    for checkpoint in (str(run.path / "checkpoint.pt"), run.path):
        scores = api.evaluate(checkpoint, "val_batch=50")
        assert scores["val"].metrics["top1_error"] == run.epochs[2]["val_top1_error"]
    with pytest.raises(api.UsageError, match="would change the run"):
        api.evaluate(run.path / "checkpoint.pt", "seed=1")
