"""The picture of published results, on made-up ones."""

import pytest

from lsgd.report.ladder import HIGHEST, PublishedResult, draw


def made(recipe: str, size: int, *values: float, std: float | None = None) -> PublishedResult:
    target = None if len(values) == 1 else 24.1
    return PublishedResult(recipe, size, "sgd", [*values], std, target, "[git a @b]")


def test_seeds_are_whiskers() -> None:
    assert made("a_bs8", 8, 23.5, std=0.1).whiskers == (0.1, 0.1)
    assert made("a_bs8", 8, 23.5).whiskers == (0, 0)
    assert made("a_bs8", 8, 60, 60, 63).whiskers == pytest.approx((1, 2))


def test_numbers_as_the_table_has_them() -> None:
    assert made("a_bs8", 8, 23.5, std=0.1).text == "23.50 % ± 0.10"
    assert made("a_bs8", 8, 60, 60, 63).text == "61.00 epochs to 24.1 %: 60 60 63"


@pytest.mark.slow
def test_families_have_a_line_and_other_recipes_do_not() -> None:
    results = [made("a_bs256", 256, 23.5), made("a_bs8k", 8192, 24.0), made("a_bs8k_x", 8192, 90)]
    assert [each.family for each in results] == ["a_bs…", "a_bs…", ""]
    figure = draw([*results, made("b_bs1k", 1024, 60, 61), made("b_bs2k", 2048, 70, 70)])
    assert figure.alt.startswith("5 published results by minibatch")
    for text in ("sgd", "a_bs…", "b_bs…", "other recipes", "8k"):
        assert f">{text}<" in figure.svg
    assert HIGHEST < 90
