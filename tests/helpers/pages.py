"""The shell commands and Python programs in the pages of the documentation.

    python -m helpers.pages     # in tests/: list all of them, and how the tests run each

The tests run a fenced block of `sh` command by command. They append `--print` to launchers other
than local and singly, and run `make` targets other than train as dry runs. Whole runs of `digits`
get fewer epochs, and all of its runs fewer images. A command that ends in `# needs …` runs only
where that is available, one in TESTED_ELSEWHERE in another test, and one that another page shows
with its output on that page alone. In a block of `console` the tests run the lines after `$ `, even
if these fail; their output must contain the lines below, in that order. There `…` stands for any
text, and a number for any number, as times and last digits differ. A block of `python` is a
program.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
NEEDS = re.compile(r"\s# needs (.+)$")
STARTS = r"(?:launch/|lsgd launch |python -m lsgd\.launch )"
PRINTED = re.compile(rf"{STARTS}(?!local|singly)[a-z]")
"""The pattern of commands that start a job on a cluster unless they have --print."""
HERE = re.compile(r"<<'(\w+)'")
"""The pattern of a here-document, with its end marker."""
SHORT = "epochs=2 'schedule.milestones=[1]' schedule.warmup_epochs=0.5"
"""The overrides that shorten a whole run of digits where no page shows its outcome."""
DIGITS = re.compile(r"lsgd\.train recipe=(digits\w*|\./mine\.yaml)(?=[ ;]|$)")
"""The pattern of a whole run of a recipe of digits, if it has no other number of epochs."""
LONG = "digits epochs=40 schedule.milestones=[13,27,36]"
"""The words of a run that a page interrupts in its third epoch, and lets go on."""
LESS_LONG = "digits epochs=20 schedule.milestones=[6,13,18]"
FEW = "epochs=8 schedule.milestones=[6] schedule.warmup_epochs=2"
"""The overrides by which a page shortens its runs of digits, none of whose outcomes it shows."""
LESS_FEW = "epochs=5 schedule.milestones=[3] schedule.warmup_epochs=1"
OWN_LENGTH = re.compile(r"\bepochs=|\$few|--cfg|metric\.stop")
"""The pattern of commands that set the length of their run, or train nothing."""
FEWER = "epochs=8 'schedule.milestones=[5,6,7]'"
"""The overrides that shorten a run of DIGITS, which keeps as many milestones and its warmup."""
FEWEST = "epochs=4 'schedule.milestones=[1,2,3]'"
"""The overrides that shorten a run of digits_reference, which has 18 times as many steps."""
TESTED_ELSEWHERE = {"python -m lsgd.doctor": "tests/doctor"}
"""Commands that take long, whose whole run another test compares with the page."""
NUMBER = re.compile(r"[-−]?\d[\d,]*(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class PageCommand:
    """A shell command or a whole Python program in a page, with its location."""

    page: Path
    number: int
    language: str
    text: str
    shown: tuple[str, ...] = ()
    """The output shown below a console command."""

    @property
    def needs(self) -> str | None:
        """The requirement named in `# needs …`, such as a cluster, or None."""
        found = NEEDS.search(self.text) if self.language != "python" else None
        return found[1] if found else None

    @property
    def tested_elsewhere(self) -> str | None:
        """The place of the test that runs this command, if it is in TESTED_ELSEWHERE."""
        return TESTED_ELSEWHERE.get(self.text)

    @property
    def is_shown_elsewhere(self) -> bool:
        """Whether a block of `console` on another page runs this command and shows its output."""
        return self.language == "sh" and any(
            line.page != self.page and line.words == self.words for line in _console_commands()
        )

    @property
    def words(self) -> list[str]:
        """The words of this command without a comment; a here-document is no part of them."""
        return shlex.split(HERE.split(self.text)[0], comments=True)

    @property
    def command(self) -> str:
        """The command that the tests run in place of this one."""
        if self.language == "python" or not (words := self.words):
            return self.text
        text = self.text.replace(LONG, LESS_LONG).replace(FEW, LESS_FEW)
        if not OWN_LENGTH.search(text):
            fewer = FEWEST if "digits_reference" in text else FEWER
            text = DIGITS.sub(rf"\g<0> {fewer}", text)
        if PRINTED.search(text) and "--print" not in words:
            return f"{text.partition('  #')[0]} --print"
        if words == ["make", "train"]:
            # Without its setting of PYTHON, which the tests set.
            printed = (
                "make --no-print-directory --dry-run train | tail -n 1 | sed 's/^PYTHON=[^ ]* //'"
            )
            return f'eval "$({printed}) {SHORT}"'
        if words[:3] == ["python", "-m", "benchmarks.gpu"] and "--print" not in words:
            return f"{text.partition('  #')[0]} --print"
        if words[0] == "make":
            return f"make --dry-run {shlex.join(words[1:])}"
        if words[:2] == ["launch/local.sh", "digits"] and "epochs=" not in text:
            return f"{text.partition('  #')[0]} {SHORT}"
        return text

    @property
    def kind(self) -> str:
        """A short description of how the tests run this command."""
        if self.needs:
            return f"needs {self.needs}"
        if self.tested_elsewhere:
            return f"in {self.tested_elsewhere}"
        if self.is_shown_elsewhere:
            return "runs on another page"
        if self.command == self.text:
            return "runs"
        if self.command.endswith("--print") or self.command.startswith("make "):
            return "prints"
        return "runs, shortened"


def tokens(page: Path) -> list[Token]:
    """Return the Markdown tokens of a page."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def lines(page: Path) -> Iterator[PageCommand]:
    """Yield all commands and programs of a page, in order."""
    for token in tokens(page):
        if token.type != "fence" or token.map is None:
            continue
        language, first = token.info.strip(), token.map[0] + 2
        match language:
            case "python":
                yield PageCommand(page, first, language, token.content)
            case "sh":
                for offset, text in _commands(token.content):
                    yield PageCommand(page, first + offset, language, text)
            case "console":
                yield from _console(page, first, token.content)


@cache
def _console_commands() -> list[PageCommand]:
    """Return the commands whose output a page shows."""
    return [line for page in PAGES for line in lines(page) if line.language == "console"]


def _commands(block: str) -> Iterator[tuple[int, str]]:
    """Yield each command of a shell block with its line offset; `\\` and `<<` continue it."""
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


def _console(page: Path, first: int, block: str) -> Iterator[PageCommand]:
    for chunk in re.split(r"^(?=\$ )", block, flags=re.M):
        if not chunk:
            continue
        command, *shown = chunk.splitlines()
        assert command.startswith("$ "), f"{page}:{first}: a console block begins with a command"
        yield PageCommand(page, first, "console", command[2:], tuple(filter(str.strip, shown)))
        first += len(chunk.splitlines())


def first_missing_line(shown: tuple[str, ...], printed: str) -> str | None:
    """Return the first shown line that the printed output lacks after those before it, or None."""
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
    """Print each command of the pages with how the tests run it, and counts of commands."""
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
