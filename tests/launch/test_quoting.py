"""Words for a shell, compared with bash itself."""

import os
import shlex
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lsgd.launch.quoting import shell_line

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",))


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("schedule.milestones=[1,2]", r"schedule.milestones=\[1\,2\]"),
        ("", "''"),
        ("~model", r"\~model"),
        ("a=~b:~c~", r"a=\~b:\~c~"),
        ("#a#", r"\#a#"),
        ("a\tb", r"$'a\tb'"),
        ("it's\n", r"$'it\'s\n'"),
    ],
)
def test_words_are_quoted_as_bash_does(word: str, quoted: str) -> None:
    printed = subprocess.run(["bash", "-c", 'printf %q "$1"', "bash", word], capture_output=True)
    assert shell_line([word]) == printed.stdout.decode() == quoted


def test_a_comma_is_quoted() -> None:
    """In braces a shell would make two words of one."""
    line = shell_line(["a={b,c}"])
    assert line == r"a=\{b\,c\}"


@settings(max_examples=60)
@given(st.lists(st.text(CHARACTERS), min_size=1, max_size=20))
@example(["'", "\\", "$(rm)", "a b", "\x00"[1:], "ä€", "\x7f\x1b", "!!", "{a,b}", "%s"])
def test_a_shell_reads_the_same_words(words: list[str]) -> None:
    """Whatever is in them, control characters and those of other languages too."""
    command = f"printf '%s\\0' {shell_line(words)}"
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    read = subprocess.run(["bash", "-c", command], env=environment, capture_output=True).stdout
    assert read.decode().split("\0")[:-1] == words
    if all(word.isprintable() for word in words):
        assert shlex.split(shell_line(words)) == words
