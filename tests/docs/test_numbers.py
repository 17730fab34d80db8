"""A number that a page takes from a study stands in the page of that study."""

import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from helpers.pages import PAGES, REPOSITORY, tokens

STUDY = re.compile(r"\]\(([^)#\s]*results/[^)#\s]+/README\.md)[^)]*\)")
LINK = re.compile(r"(!?\[[^\]]*\])\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
NUMBER = re.compile(
    r"(?<![\w.])[−-]?\d[\d,]*\.\d+(?:e-\d+)?(?![\w.]*\d)|(?<![\w.])\d+(?= %| percent)"
)
WRITTEN = re.compile(r"(?<![\w.,])[−-]?\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\d|[.,]\d)")
"""Decimal fractions and percentages: whole numbers are counts, which are written in many ways."""


def paragraphs(page: Path) -> Iterator[str]:
    """The text of each paragraph of a page, and of each row of a table."""
    row: list[str] | None = None
    for token in tokens(page):
        match token.type:
            case "tr_open":
                row = []
            case "tr_close" if row is not None:
                yield " | ".join(row)
                row = None
            case "inline" if row is not None:
                row.append(token.content)
            case "inline":
                yield token.content


def quoted(page: Path) -> Iterator[tuple[str, tuple[Path, ...], str]]:
    """Each such number of a page, the studies to which its paragraph links, and the paragraph."""
    for text in paragraphs(page):
        studies = tuple((page.parent / link).resolve() for link in STUDY.findall(text))
        for number in NUMBER.findall(CODE.sub("", LINK.sub(r"\1", text))) if studies else ():
            yield number, studies, text


def stands_in(number: str, text: str) -> bool:
    """Is it written there, with as many digits or more, with either sign for minus?"""
    quoted = _exact(number)
    there = {_exact(found) for found in WRITTEN.findall(text)}
    digits = Decimal(1).scaleb(_exponent(quoted))
    return any(
        _exponent(value) <= _exponent(quoted) and value.quantize(digits, ROUND_HALF_UP) == quoted
        for value in there
    )


def _exact(number: str) -> Decimal:
    return Decimal(number.replace("−", "-").replace(",", ""))


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_numbers_are_those_of_the_study(page: Path) -> None:
    for number, studies, paragraph in quoted(page):
        texts = [study.read_text(encoding="utf-8") for study in studies]
        assert any(stands_in(number, text) for text in texts), f"{number} of: {paragraph}"


def test_the_readme_and_the_studies_page_quote_many() -> None:
    """A pattern that finds nothing would agree with everything."""
    assert len(list(quoted(REPOSITORY / "README.md"))) >= 10
    assert len(list(quoted(REPOSITORY / "docs/explanation/studies.md"))) >= 50


def test_a_number_may_be_rounded_and_not_another() -> None:
    text = "| kn = 64 | 8.35 ± 0.22 | −0.0149 | 1,234.5 |"
    for number in ("8.35", "8.4", "8", "0.2", "−0.01", "-0.015", "1,234.5"):
        assert stands_in(number, text), number
    for number in ("8.3", "8.350", "8.36", "35", "0.01", "234.5"):
        assert not stands_in(number, text), number
