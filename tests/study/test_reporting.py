"""Where a study has its report."""

import re
from pathlib import Path

import pytest

from lsgd import config
from lsgd.study.reporting import report_folder
from lsgd.study.trials import trials


@pytest.mark.slow
def test_words_that_change_the_run_have_a_report_of_their_own() -> None:
    digits = config.load_study("digits")

    def folder(*words: str) -> Path:
        return report_folder(digits, trials(digits, words))

    assert folder() == folder("device=cpu") == Path("runs/studies/digits")
    assert re.fullmatch(r"digits-[0-9a-f]{8}", folder("epochs=29").name)
