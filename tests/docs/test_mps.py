"""The page of what a Mac's GPU has is what its program finds now."""

import pytest
import torch

from docs import mps


@pytest.mark.slow
@pytest.mark.usefixtures("composed_once")
def test_the_small_recipes_call_what_a_macs_gpu_has() -> None:
    page = mps.render_page()
    assert " operators are called. mps has all of them." in page
    # Another torch may call others.
    if f"of torch {torch.__version__.partition('+')[0]})" in mps.PAGE.read_text(encoding="utf-8"):
        assert mps.PAGE.read_text(encoding="utf-8") == page, "make it again: python -m docs.mps"


@pytest.mark.parametrize(
    ("operator", "inner", "outcome"),
    [
        ("add.Tensor", {}, "kernel"),
        ("abs.default", {}, "made of abs.out"),
        ("zeros_like.default", {"zeros_like": {"empty_like", "zero_"}, "empty_like": {"empty"}},
         "made of empty_like, zero_"),
        ("linalg_eig.default", {}, "missing: linalg_eig.default"),
        ("stack.default", {"stack": {"cat", "linalg_eig"}}, "missing: linalg_eig"),
        ("made_up.default", {}, "missing: made_up.default"),
    ],
)  # fmt: skip
def test_an_operator_is_there_with_all_that_it_is_made_of(
    operator: str, inner: dict[str, set[str]], outcome: str
) -> None:
    assert mps.mps_support(operator, inner) == outcome
