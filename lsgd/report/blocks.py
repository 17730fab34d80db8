"""What a report is made of: headings, sentences, tables and figures, in no markup."""

from dataclasses import dataclass, field

from lsgd.report.drawing import Figure


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, the others are numbers or short words."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Outcomes:
    """Claims with their outcome: the sentence of each, its outcome, and the numbers behind it."""

    items: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Listing:
    """A list of items, one line each."""

    items: list[str]


@dataclass(frozen=True)
class Figures:
    """Figures that belong together."""

    figures: list[Figure]
    large: bool = False


Block = str | Table | Outcomes | Listing | Figures
"""A part of a section. A str is a paragraph, in which text between backticks is set as code."""


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """A whole report."""

    title: str
    lead: list[str]
    """The first paragraphs: question, source, and how many of the runs are there."""
    sections: list[Section]


def printable(text: str) -> str:
    """The text with a sign for each unprintable character, as names of folders may have."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
