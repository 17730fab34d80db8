"""The two calibrated constants are what the fit gives, and the hour what results/ says."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lsgd.plan import paper
from lsgd.plan.hardware import H200, PAPER

FOLDER = Path(__file__).resolve().parents[2] / "results/2026-11-22-plan-calibration"


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    """The script that is kept beside the numbers it has given."""
    spec = importlib.util.spec_from_file_location("calibrate", FOLDER / "calibrate.py")
    assert spec is not None
    assert spec.loader is not None
    # Where its dataclasses look for their module.
    sys.modules["calibrate"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["calibrate"]


@pytest.mark.slow
def test_the_constants_are_those_of_the_fit(fit: ModuleType) -> None:
    fitted = fit.calibrated(by_latency=True, by_spread=True).hardware
    assert PAPER.network_latency.value == pytest.approx(fitted.network_latency.value, rel=1e-5)
    assert PAPER.spread.value == pytest.approx(fitted.spread.value, rel=1e-5)


@pytest.mark.slow
def test_the_hour_is_predicted(fit: ModuleType) -> None:
    """What is fitted fits; without stragglers the model is too fast by a tenth."""
    found = {each.name: each for each in fit.predictions()}
    both, neither = found["both"], found["neither"]
    assert (both.ring_ratio, both.growth) == (pytest.approx(3.0), pytest.approx(1.12))
    assert both.efficiency == pytest.approx(0.9, abs=0.01)
    assert (neither.latency, neither.spread) == (pytest.approx(5e-6), 0)
    off = [each.minutes / fit.MINUTES_ON_256 - 1 for each in (both, neither)]
    assert off == [pytest.approx(0.0051, abs=5e-5), pytest.approx(-0.0957, abs=5e-5)]
    assert "0.5% of the paper's hour" in paper.HOW_FAR_OFF
    assert "9.6% without them" in paper.HOW_FAR_OFF
    assert FOLDER.name in paper.HOW_FAR_OFF


def test_the_readme_has_the_table_that_the_script_prints(fit: ModuleType) -> None:
    assert fit.table() in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_two_constants_are_calibrated_and_every_one_has_a_source() -> None:
    fitted = [name for name, each in PAPER.constants().items() if "calibrated" in each.source]
    assert fitted == ["network latency", "spread"]
    for constant in (*PAPER.constants().values(), *H200.constants().values()):
        assert constant.source
    assert not any("calibrated" in each.source for each in H200.constants().values())
