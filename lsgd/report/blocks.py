"""The elements of a report, free of markup: headings, sentences, tables and figures."""

from dataclasses import dataclass, field

from lsgd.report.drawing import Figure


@dataclass(frozen=True)
class Table:
    """A table of a report; its first column is text, the others are numbers or short words."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class ClaimResults:
    """The results of a study's claims: sentence, outcome and deciding numbers of each."""

    items: list[tuple[str, str, str]]


@dataclass(frozen=True)
class BulletList:
    """A bullet list of a report, with one line for each item."""

    items: list[str]


@dataclass(frozen=True)
class Figures:
    """Figures of a report that are shown side by side."""

    figures: list[Figure]
    large: bool = False


Block = str | Table | ClaimResults | BulletList | Figures
"""A part of a section. A str is a paragraph, in which text between backticks is set as code."""


@dataclass(frozen=True)
class Section:
    """A section of a report: a heading with the blocks below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """The complete content of a report, from which its Markdown and HTML are rendered."""

    title: str
    lead: list[str]
    """The first paragraphs: question, source, and the number of runs that are finished."""
    sections: list[Section]
