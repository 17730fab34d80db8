"""The command, as a user types it."""

import re
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.usage_errors import usage_error

from lsgd.plan.__main__ import main
from lsgd.plan.strategy import simulate_strategies, strategies
from lsgd.report.run_archive import FILE, unpack

pytestmark = pytest.mark.usefixtures("composed_once")

LENET = ["strategy", "+recipe=fashion_lenet5", "workers=4"]
STEP = ["--step", "0.007"]
GBIT = ["cluster.server_gbits=1", "cluster.worker_gbits=1"]
STUDY = Path(__file__).resolve().parents[2] / "results/2026-11-20-fashion-bs1k"
RUNS = unpack(STUDY / FILE)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_all_strategies_on_1_gbit(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed([*LENET, *STEP, *GBIT], capsys)
    assert "lenet5, 61,706 parameters, 32 images" in text
    assert "On 4 workers allreduce is the fastest" in text
    assert "cluster.step=0.007 " in text
    rows = re.findall(r"^\| (\d+) +\| ([a-z]+(?: \d)?) ", text, re.MULTILINE)
    names = ["allreduce", "sync", "backup 1", "bounded 3", "async"]
    # One worker is no backup of itself.
    assert rows == [
        (count, name) for count in "124" for name in names if (count, name) != ("1", "backup 1")
    ]
    assert text.count("colocated, ") == text.count("central, ") == 3


def test_the_network_and_the_stragglers_decide(capsys: pytest.CaptureFixture[str]) -> None:
    fast = ["cluster=stragglers", "cluster.server_gbits=1e6", "cluster.worker_gbits=1e6"]
    assert "On 4 workers async is the fastest" in printed([*LENET, *STEP, *fast], capsys)


def test_the_recipe_s_own_servers_and_numbers_are_those_of_all() -> None:
    lenet = ["+recipe=fashion_lenet5", "workers_per_pass=1"]
    words = ["strategy=backup", "strategy.backup=2", "strategy.servers=3", "workers=8"]
    recipe = compose_recipe(*lenet, *words)
    settings = strategies(recipe)
    assert [*settings] == ["allreduce", "sync", "backup 2", "bounded 3", "async"]
    assert [each.servers for each in settings.values()] == [1, 3, 3, 3, 3]
    assert settings["backup 2"] == recipe.strategy
    bounded = compose_recipe(*lenet, "strategy=bounded", "strategy.slack=0")
    assert "bounded 0" in strategies(bounded)
    local = compose_recipe(*lenet, "strategy=async", "strategy.local_steps=8", "workers=8")
    settings = strategies(local)
    assert [*settings][-2:] == ["bounded 3, 8 local steps", "async, 8 local steps"]
    assert [each.batches_per_push for each in settings.values()] == [1, 1, 1, 8, 8]


def test_fewer_workers_have_the_speeds_of_the_first_and_no_more_servers_beside_them() -> None:
    words = ["strategy=sync", "strategy.servers=3", "strategy.topology=colocated", "workers=3"]
    speeds = ["cluster.speeds=[1,1,9]", "cluster.spread=0", "cluster.worker_gbits=1e9"]
    recipe = compose_recipe("+recipe=fashion_lenet5", *words, *speeds, "cluster.latency_us=0")
    paces = simulate_strategies(recipe, [6, 6, 6])
    assert {count for count, _ in paces} == {1, 2, 3}
    step = recipe.cluster.step
    seconds = [paces[count, "sync"].quantile(0.5) for count in (1, 2, 3)]
    assert seconds == pytest.approx([step, step, 9 * step], rel=1e-3)


def test_compression_speeds_up_the_strategies_that_have_it() -> None:
    words = ["workers=2", "cluster.worker_gbits=0.001", "cluster.server_gbits=0.001"]
    paces, compressed = (
        simulate_strategies(compose_recipe("+recipe=fashion_lenet5", *words, *fp16), [600])
        for fp16 in ([], ["gradient_compression=fp16"])
    )
    faster = {
        name
        for workers, name in paces
        if compressed[workers, name].batches_per_second > paces[workers, name].batches_per_second
    }
    assert faster == {"allreduce", "sync"}


def test_a_run_says_how_long_a_step_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [
        "strategy",
        "+recipe=fashion_bs1k",
        "workers=2",
        "precision=float64",
        "channels_last=true",
    ]
    text = printed([*run, "--run", str(RUNS / "float64-one")], capsys)
    assert "worked out from " in text
    assert str(RUNS / "float64-one") in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (LENET, "add --step SECONDS for its 32 images, or --run FOLDER"),
        ([*LENET, "--step", "1e-300"], "1e-300 is not a number of seconds from 1e-9 to 1e9"),
        ([*LENET, "--step", "0"], "0 is not a number of seconds from 1e-9 to 1e9"),
        ([*LENET, "--run", "nowhere"], "--run nowhere is not a run folder"),
        ([*LENET, *STEP, "rehearse=true"], "leave it out to plan the real run"),
        ([*LENET, *STEP, "strategy.servers=3"], "has no effect with strategy=allreduce"),
        ([*LENET, *STEP, "strategy=local"], "supports only strategy.name=allreduce or"),
    ],
)
def test_refusals(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in usage_error(lambda argv: main([*argv]), capsys, *words)
