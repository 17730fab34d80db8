"""What has become of a trial."""

from pathlib import Path

import pytest

from lsgd import config
from lsgd.errors import Refused
from lsgd.trials.trial import Trial


def test_a_queue_that_does_not_answer_is_no_reason_to_train_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(config.load_recipe(["+recipe=digits"]), [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert trial.queued is None
    trial.job.parent.mkdir(parents=True)
    trial.job.write_text("Submitted batch job 12\n")
    with pytest.raises(Refused, match=r"whether job 12 .* is not known \(squeue is not installed"):
        assert trial.queued
