"""Rows of a Markdown table, which a terminal shows as well."""

from lsgd.bench.timing import Estimate


def head(*titles: str) -> list[str]:
    """The first two lines of a table with these columns."""
    return [row(*titles), "|---" * len(titles) + "|"]


def row(*cells: str) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def shown(found: Estimate, form: str) -> str:
    """A median and its interval, formatted alike."""
    return f"{found.median:{form}} ({found.low:{form}} to {found.high:{form}})"
