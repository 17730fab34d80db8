"""What a report is made of: headings, sentences, tables and figures, in no markup."""

from dataclasses import dataclass, field

from lsgd.report.figures import Figure


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, the others are numbers or short words."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Outcomes:
    """Sentences that were decided: what is said, how it came out, and the numbers."""

    items: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Listing:
    """Items, one line each."""

    items: list[str]


@dataclass(frozen=True)
class Figures:
    """Figures that belong together."""

    figures: list[Figure]
    large: bool = False


Block = str | Table | Outcomes | Listing | Figures
"""A str is a paragraph; `…` in it is what a machine reads."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """A whole report."""

    title: str
    lead: list[str]
    """Question, source, and how far it has come."""
    sections: list[Section]


def printable(text: str) -> str:
    """Names of folders and damaged files may have anything in them; a line has none of it."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
