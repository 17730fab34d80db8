"""Markdown tables and text, which are also readable on a terminal."""

import re
import textwrap
from collections.abc import Sequence
from itertools import takewhile

MAX_PADDED_WIDTH = 40
"""The maximum width in characters of a cell to which other cells of its column are padded."""
# The start of a tag, an entity, a link, code or an escape.
MARKUP = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(:\[])|`|\\(?=[!-/:-@\[-`{-~]|\Z)")


def escape_markdown(text: str) -> str:
    """Escape Markdown and HTML markup in a text, except code between backticks and emphasis.

    >>> print(escape_markdown("`<b>` of <b>a_b</b> [c](d) &lt; x < y"))
    `<b>` of &lt;b>a_b&lt;/b> [c\\](d) &amp;lt; x < y
    """
    parts = re.split("(`[^`]+`)", text)
    parts[::2] = [MARKUP.sub(_escaped, part) for part in parts[::2]]
    return "".join(parts)


def _escaped(markup: re.Match[str]) -> str:
    return {"<": "&lt;", "&": "&amp;"}.get(markup[0], f"\\{markup[0]}")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a head and rows of cells as a Markdown table with padded columns.

    Numeric columns but the first are right-aligned. A `|` in a cell is escaped, and a newline, as
    the name of a file may have, is a space. From the first column with a cell of more than 40
    characters on, no cell is padded.

    >>> print(markdown_table(["recipe", "error"], [["bs256", "23.60"], ["bs8k", "9.5"]]))
    | recipe | error |
    |--------|------:|
    | bs256  | 23.60 |
    | bs8k   |   9.5 |
    """
    lines = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *rows)
    ]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    filled = len(list(takewhile(lambda width: width <= MAX_PADDED_WIDTH, widths)))
    widths[filled:] = [0] * (len(widths) - filled)
    right = [index > 0 and _numbers(column[1:]) for index, column in enumerate(columns)]
    rule = [
        "-" * (max(width, 1) + 1) + (":" if number else "-")
        for width, number in zip(widths, right, strict=True)
    ]
    written = [
        [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ]
        for line in lines
    ]
    body = ["| " + " | ".join(cells) + " |" for cells in written]
    return "\n".join([body[0], f"|{'|'.join(rule)}|", *body[1:]])


def wrapped_row(widths: tuple[int, int, int], first: str, second: str, text: str, last: str) -> str:
    """Format four cells as a row of text; three columns have widths, and the third is wrapped.

    >>> print(wrapped_row((4, 3, 8), "lr", "5.1", "0.1 x 32 = 3.2", "ok"))
    lr   5.1 0.1 x 32 ok
             = 3.2
    """
    lines = textwrap.wrap(text, widths[2], break_on_hyphens=False) or [""]
    others = [(first, second, last), *[("", "", "")] * (len(lines) - 1)]
    return "\n".join(
        f"{a:<{widths[0]}} {b:<{widths[1]}} {line:<{widths[2]}} {c}".rstrip()
        for (a, b, c), line in zip(others, lines, strict=True)
    )


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun, in the plural except for 1.

    >>> format_count(1, "run"), format_count(2000, "process", "processes")
    ('1 run', '2,000 processes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _numbers(cells: Sequence[str]) -> bool:
    values = [cell for cell in cells if cell not in ("", "–")]
    return bool(values) and all(cell[0].isdigit() or cell[0] in "+−-." for cell in values)
