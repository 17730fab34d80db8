"""`lsgd.plan bound`: how fast a GPU could train at most."""

import pytest
from helpers.usage_errors import usage_error

from lsgd.job.gpus import GPUS, GpuDataSheet
from lsgd.plan import bound
from lsgd.plan.__main__ import main
from lsgd.plan.bound import LAUNCH, excess_traffic
from lsgd.profile.traffic import OperatorCall, StepTraffic

GPU = GpuDataSheet("G", "G", bandwidth=1, float32=2, tf32=None, lower=4)


def call(name: str, moved: float, flops: float = 0, *, lower: bool = False) -> OperatorCall:
    return OperatorCall(name, {1: int(moved)}, {}, int(flops), is_bfloat16=lower, fusible=False)


def test_an_operator_takes_the_longer_of_its_two_times() -> None:
    calls = [call("a", 1e12), call("b", 1e12, 4e12), call("c", 1e12, 4e12, lower=True)]
    found = bound.step_time_bound(calls, GPU)
    assert (found.memory, found.arithmetic) == (2, 2)
    assert (found.seconds, found.bottleneck) == (4, "memory")
    assert bound.step_time_bound(calls[1:2], GPU).bottleneck == "arithmetic"
    few = bound.step_time_bound([call("a", 1)] * 7, GPU)
    assert (few.seconds, few.bottleneck) == (pytest.approx(7 * LAUNCH.value * 1e-6), "launches")


def test_what_is_moved_beyond_is_named_by_operator() -> None:
    text = excess_traffic("x", [call("a", 1000), call("b", 30)], [call("a", 990), call("c", 10)])
    assert text == "- x: +3.00 % (`b` +3.00 %, `a` +1.00 %, `c` -1.00 %)"


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [call("a", 335e9)]
    step = StepTraffic(32, calls, calls)
    monkeypatch.setattr(bound, "count_traffic", lambda *_, **__: step)
    monkeypatch.setattr(bound, "count_bare_traffic", lambda *_: [call("a", 300e9)])
    assert main(["bound", "+recipe=bs256", "--processes", "8"]) == 0
    text = capsys.readouterr().out
    # 335 GB at 3.35 TB/s for 32 images.
    assert text.count(" 320 memory |") == 4
    assert "+11.67 %" in text
    assert "7100 images/s" in text
    assert all(gpu.name in text for gpu in GPUS)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+recipe=ptb_small"], "lsgd.plan bound"),
        (["+recipe=bs256", "--processes", "9"], "9 processes cannot share workers=8"),
    ],
)
def test_refusals(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in usage_error(main, capsys, "bound", *words)
