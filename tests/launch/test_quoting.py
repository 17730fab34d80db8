"""Values of others in the languages of launchers, read again as these read them."""

import os
import shlex
import subprocess

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.launch.quoting import kubernetes_command, sbatch_line, shell_line, yaml_text

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


def read_by_sbatch(line: str) -> list[str]:
    """The options of a line as Slurm's own sbatch takes them out of it (src/sbatch/opt.c)."""
    words, word, quote, escaped = [], "", "", False
    for character in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = word + character, False
        elif character == "\\":
            escaped = True
        elif quote and character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character == "#":
            break
        elif not quote and character.isspace():
            words, word = [*words, word], ""
        else:
            word += character
    assert not quote
    return [word for word in [*words, word] if word]


@settings(max_examples=60)
@given(st.text(CHARACTERS, max_size=20))
@example('a "b" --wrap=id')
@example("it's #1 \\")
@example("1:00\n#SBATCH --wrap=id")
def test_sbatch_reads_one_option_in_a_line(value: str) -> None:
    if value.isprintable():
        assert read_by_sbatch(sbatch_line(f"--time={value}")) == [f"--time={value}"]
    else:
        with pytest.raises(UsageError, match=r"--time is .* but a batch script must not"):
            sbatch_line(f"--time={value}")


@settings(max_examples=60)
@given(st.text(CHARACTERS, max_size=20))
@example("registry.example/lsgd:1")
@example("yes")
@example("a\n  hostNetwork: true")
@example("a, b}: {c")
@example("long words " * 20)
@example("a\x85b\u2028c")
def test_yaml_reads_the_same_text(value: str) -> None:
    """In a block and in braces; on one line, so that it can be no other field."""
    text = yaml_text(value)
    assert yaml.safe_load(f"a: {text}\nb: {{c: {text}, d: 1}}") == {
        "a": value,
        "b": {"c": value, "d": 1},
    }
    assert len(text.splitlines()) == 1


def expanded(word: str) -> str:
    """A word of a command as Kubernetes expands it, where A is set (third_party/expansion)."""
    done, rest = "", word
    while rest:
        before, dollar, rest = rest.partition("$")
        done += before
        if rest.startswith("$"):
            done, rest = f"{done}$", rest[1:]
        elif rest.startswith("(A)"):
            done, rest = f"{done}expanded", rest[3:]
        else:
            done += dollar
    return done


@settings(max_examples=60)
@given(st.lists(st.text(st.sampled_from('$()A"\n b'), max_size=8), max_size=4))
@example(["$(A)", "$$(A)", "$$$(A)", "$$", "a$"])
def test_kubernetes_expands_nothing(words: list[str]) -> None:
    assert list(map(expanded, yaml.safe_load(kubernetes_command(words)))) == words
