"""The mean of the weights of a run's newest checkpoints, evaluated with its own BN statistics."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.reference_run import WORDS
from helpers.usage_errors import usage_error

from lsgd.comm.single import SingleComm
from lsgd.evaluate import main
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.rules.averaging import mean_of_states
from lsgd.run import checkpoint
from lsgd.train import train
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
SHORT = [*WORDS, "epochs=1", "schedule.milestones=[]", "data.val_examples=100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 5 steps with the checkpoints of steps 2, 4 and 5."""
    folder = tmp_path_factory.mktemp("average") / "run"
    train(compose_recipe(*SHORT, "keep_checkpoints=3", f"run_dir={folder}"))
    return folder


def test_the_mean_is_taken_in_float64_and_counts_are_the_newest() -> None:
    states = [
        {"w": torch.tensor([value, 1.0]), "batches": torch.tensor(number)}
        for number, value in enumerate([2.0**24, 1.0, 1.0, 1.0])
    ]
    mean = mean_of_states(iter(states))
    # A sum in float32 would lose the three ones, and give 2^22.
    assert mean["w"].tolist() == [2**22 + 1, 1.0]
    assert mean["batches"] == 0
    assert mean["w"].dtype == torch.float32


@pytest.mark.slow
def test_the_newest_checkpoints_are_averaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: the parameters of steps 4 and 5, with statistics of the training images.

    Catches an older checkpoint, and the statistics that belong to other weights.
    """
    newest, before, oldest = (
        checkpoint.decode_checkpoint(checkpoint.read(path), "a").model
        for path in checkpoint.checkpoint_files(folder)
    )
    recipe = compose_recipe(*SHORT, "bn_statistics=precise")
    workload = open_workload(recipe, CPU)
    model = workload.network()
    model.load_state_dict(oldest)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((newest[name] + before[name]) / 2)
    workload.carried_states(model, range(recipe.workers), SingleComm())
    trained = TrainedModel(workload, model, SingleComm(), CPU)
    expected = evaluate(trained, workload.inputs())["val"].metrics
    capsys.readouterr()
    assert main([str(folder), "--average", "2", "device=cpu"]) == 0
    error, loss = expected["top1_error"], expected["loss"]
    printed = capsys.readouterr().out
    assert f"top-1 error {error:.2f} %" in printed
    assert f"loss {loss:.4f}" in printed


def test_refusals(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = usage_error(main, capsys, str(folder), "--average", "4")
    assert "needs the checkpoints of 4 steps, and" in refusal
    assert "has those of 3; write less, or train with keep_checkpoints=4" in refusal
    file = folder / checkpoint.FILE
    assert "is for a run folder" in usage_error(main, capsys, str(file), "--average", "2")
    saved = checkpoint.decode_checkpoint(checkpoint.read(file), "a")
    other = compose_recipe(*SHORT, "averaging=ema")
    for step in (1, 2):
        changed = replace(saved, step=step, fingerprint=other.fingerprint)
        changed.recipe["averaging"]["name"] = "ema"
        checkpoint.write(changed, tmp_path)
    assert "averaging=ema; leave it out" in usage_error(
        main, capsys, str(tmp_path), "--average", "2"
    )
