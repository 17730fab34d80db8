"""Which planned runs have ended, by what their folders have."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd import config
from lsgd.paths import checkpoint_steps
from lsgd.planned import PlannedRun, has_ended
from lsgd.train import train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "newest"),
    [
        (("schedule.milestones=[]",), "checkpoint-"),
        (("schedule.milestones=[]", "strategy=async", "optim.nesterov=false"), "checkpoint-"),
        (("schedule.milestones=[1.5]",), "milestone-"),  # it drops within its last epoch
    ],
)
def test_a_run_without_its_last_checkpoint_was_killed_while_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], newest: str
) -> None:
    """It resumes from the one before, and a run that is published without any has ended."""
    monkeypatch.chdir(tmp_path)
    made = compose_recipe("+recipe=digits", "epochs=2", "schedule.warmup_epochs=1", *words)
    planned = PlannedRun(made, [])
    train(replace(made, run_dir=str(planned.folder)))
    assert has_ended(planned.saved_run)
    last, before = checkpoint_steps(planned.folder)
    assert last.name.startswith(newest)
    (planned.folder / "checkpoint.pt").unlink()
    last.unlink()
    assert not has_ended(planned.saved_run)
    before.unlink()
    assert has_ended(planned.saved_run)


def test_a_run_from_a_librarys_weights_is_the_planned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has recorded the file of these weights in place of the option."""
    monkeypatch.chdir(tmp_path)
    made = compose_recipe(
        "+recipe=bs256", "model=torchvision/resnet18", "model.options.pretrained=true"
    )
    planned = PlannedRun(made, [])
    model = made.model.started_from("weights.pth")
    planned.folder.mkdir(parents=True)
    (planned.folder / "metrics.jsonl").write_text('{"kind": "start", "step": 0}\n')
    for digest, is_it in ((64 * "0", True), (None, False)):
        start = {"start": model.start if digest else None, "start_sha256": digest}
        text = config.to_yaml(replace(made, model=replace(model, **start)))
        (planned.folder / "config.yaml").write_text(text)
        assert (planned.saved_run is not None) == is_it
