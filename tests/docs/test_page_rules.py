"""What pages promise: no code beside the fences, and what is shown is what has to be printed."""

import subprocess
from pathlib import Path

import pytest
from helpers.pages import PAGES, REPOSITORY, PageCommand, first_missing_line, lines, tokens

PATCHES = [
    pytest.param(line, id=f"{page.name}:{line.number}")
    for page in PAGES
    for line in lines(page)
    if line.text.startswith("git apply")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_all_code_is_in_fences_that_say_what_it_is(page: Path) -> None:
    """Indented, or of an unknown language, it would be run by no test."""
    assert [token.map for token in tokens(page) if token.type == "code_block"] == []
    known = {"sh", "console", "python", "text", "yaml", "json", "mermaid"}
    assert {token.info.strip() for token in tokens(page) if token.type == "fence"} <= known


def test_what_is_shown_has_to_be_printed_in_order() -> None:
    printed = (
        "epoch 1: error 3.4 %\nepoch 2: error 2.25 %, 1,234 images/s\nlsgd: batch_size is derived\n"
    )
    assert (
        first_missing_line(("epoch 2: error 9.99 %, …", "lsgd: batch_size is derived"), printed)
        is None
    )
    assert (
        first_missing_line(("lsgd: batch_size is derived", "epoch 2: …"), printed) == "epoch 2: …"
    )
    assert first_missing_line(("lsgd: batch_size is set",), printed) == "lsgd: batch_size is set"


@pytest.mark.git
@pytest.mark.parametrize("line", PATCHES)
def test_a_patch_on_a_page_applies_to_the_tree(line: PageCommand) -> None:
    """Whoever changes the patched lines runs the fast tests, and pages are run by slow ones."""
    _, _, patch = line.text.partition("\n")
    checked = subprocess.run(
        ["git", "apply", "--check", "-"],
        cwd=REPOSITORY, input=patch.removesuffix("END"), text=True, capture_output=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
