"""Tables in Markdown, which a terminal shows as well."""

from collections.abc import Sequence
from itertools import takewhile

WIDEST = 40
"""Characters of the widest cell that others are made as wide as."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a table whose columns are as wide as their widest cell.

    Columns of numbers are set to the right, except the first; a `|` in a cell is escaped. From the
    first column on that has a cell of more than 40 characters, nothing is filled up with blanks.

    >>> print(markdown(["recipe", "error"], [["bs256", "23.60"], ["bs8k", "9.5"]]))
    | recipe | error |
    |--------|------:|
    | bs256  | 23.60 |
    | bs8k   |   9.5 |
    """
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (head, *rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    filled = len(list(takewhile(lambda width: width <= WIDEST, widths)))
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


def _numbers(cells: Sequence[str]) -> bool:
    values = [cell for cell in cells if cell not in ("", "–")]
    return bool(values) and all(cell[0].isdigit() or cell[0] in "+−-." for cell in values)
