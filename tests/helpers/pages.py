"""The pages of the documentation, and the lines of shell and Python that stand in them.

    python -m helpers.pages     # in tests/: every line, and how the tests run it

A fenced block of `sh` is run, command by command; what a launcher other than local or singly
would start is only printed, by its own `--print`, and of `make` only train is really made. A line
that ends in `# needs …` waits for what it names. Of a block of `console` the lines behind `$ ` are
run, also where they are refused, and what they print has the lines that stand below, in that order:
there `…` is for anything, and any number for any other, as times and last digits differ. A block of
`python` is a program.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
NEEDS = re.compile(r"\s# needs (.+)$")
STARTS = r"(?:launch/|lsgd launch |python -m lsgd\.launch )"
PRINTED = re.compile(rf"{STARTS}(?!local|singly)[a-z]")
"""What starts a job on a cluster, unless it is told to print."""
HERE = re.compile(r"<<'(\w+)'")
"""Begins text that goes on to the line which this word is."""
NUMBER = re.compile(r"[-−]?\d[\d,]*(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Line:
    """A command of a page, or a whole program of Python, and where it stands."""

    page: Path
    number: int
    language: str
    text: str
    shown: tuple[str, ...] = ()
    """What it prints, of a console."""

    @property
    def needs(self) -> str | None:
        """What it waits for, such as a cluster."""
        found = NEEDS.search(self.text) if self.language != "python" else None
        return found[1] if found else None

    @property
    def command(self) -> str:
        """What the tests run in its place."""
        words = shlex.split(self.text, comments=True)
        if self.language == "python" or not words:
            return self.text
        text = self.text
        if PRINTED.search(text) and "--print" not in words:
            return f"{text.partition('  #')[0]} --print"
        if words[0] == "make" and words[1:] != ["train"]:
            return f"make --dry-run {shlex.join(words[1:])}"
        return text

    @property
    def kind(self) -> str:
        """How the tests run it, in a word or two."""
        if self.needs:
            return f"needs {self.needs}"
        return "runs" if self.command == self.text else "prints"


def tokens(page: Path) -> list[Token]:
    """The page as Markdown."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def lines(page: Path) -> Iterator[Line]:
    """Everything in a page that can be run, in its order."""
    for token in tokens(page):
        if token.type != "fence" or token.map is None:
            continue
        language, first = token.info.strip(), token.map[0] + 2
        match language:
            case "python":
                yield Line(page, first, language, token.content)
            case "sh":
                for offset, text in _commands(token.content):
                    yield Line(page, first + offset, language, text)
            case "console":
                yield from _console(page, first, token.content)


def _commands(block: str) -> Iterator[tuple[int, str]]:
    """Each command of a block with the offset of its first line; `\\` and `<<` make it longer."""
    text, start, end = "", 0, None
    for offset, line in enumerate(block.splitlines()):
        start = start if text else offset
        text += line
        end = end or (found[1] if (found := HERE.search(line)) else None)
        if line.endswith("\\") or end not in (None, line):
            text += "\n"
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            yield start, text
        text, end = "", None


def _console(page: Path, first: int, block: str) -> Iterator[Line]:
    for chunk in re.split(r"^(?=\$ )", block, flags=re.M):
        if not chunk:
            continue
        command, *shown = chunk.splitlines()
        assert command.startswith("$ "), f"{page}:{first}: a console block begins with a command"
        yield Line(page, first, "console", command[2:], tuple(filter(str.strip, shown)))
        first += len(chunk.splitlines())


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first line that was shown and has not been printed below those before it, or None."""
    left = iter(printed.splitlines())
    for line in shown:
        pattern = re.compile(_loose(line))
        if not any(pattern.fullmatch(_plain(other)) for other in left):
            return line
    return None


def _plain(line: str) -> str:
    return NUMBER.sub("0", " ".join(line.split()))


def _loose(line: str) -> str:
    return re.escape(_plain(line)).replace("…", ".*")


def main() -> None:
    """Print every line with how the tests run it, and how many of shell need something."""
    every = [line for page in PAGES for line in lines(page)]
    for line in every:
        where = f"{line.page.relative_to(REPOSITORY)}:{line.number}"
        print(f"{where:40} {line.kind:24} {line.text.splitlines()[0]}")
    shell = [line for line in every if line.language != "python"]
    waiting = sum(line.needs is not None for line in shell)
    programs = len(every) - len(shell)
    print(f"{len(shell)} lines of shell, of which {waiting} need something; {programs} programs")


if __name__ == "__main__":
    main()
