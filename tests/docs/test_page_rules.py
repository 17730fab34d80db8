"""What pages promise: few lines that nobody can try, and no code beside the fences."""

from pathlib import Path

import pytest
from helpers.pages import PAGES, REPOSITORY, lines, missing, tokens

MOST_WAITING = 1 / 5
"""The share of shell lines that may need a cluster or data."""


def test_few_lines_of_shell_need_what_a_laptop_has_not() -> None:
    shell = [line for page in PAGES for line in lines(page) if line.language != "python"]
    waiting = [line for line in shell if line.needs]
    assert len(waiting) <= MOST_WAITING * len(shell)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_all_code_is_in_fences_that_say_what_it_is(page: Path) -> None:
    """Indented, or of an unknown language, it would be run by no test."""
    assert [token.map for token in tokens(page) if token.type == "code_block"] == []
    known = {"sh", "console", "python", "text", "yaml", "json", "mermaid"}
    assert {token.info.strip() for token in tokens(page) if token.type == "fence"} <= known


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_what_is_shown_has_to_be_printed_in_order() -> None:
    printed = (
        "epoch 1: error 3.4 %\nepoch 2: error 2.25 %, 1,234 images/s\nlsgd: batch_size is derived\n"
    )
    assert missing(("epoch 2: error 9.99 %, …", "lsgd: batch_size is derived"), printed) is None
    assert missing(("lsgd: batch_size is derived", "epoch 2: …"), printed) == "epoch 2: …"
    assert missing(("lsgd: batch_size is set",), printed) == "lsgd: batch_size is set"
