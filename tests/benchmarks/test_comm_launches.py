"""The jobs of benchmarks.comm; that jobs end well is seen in bench/test_job_launches.py."""

import json
import re
from pathlib import Path

import pytest
from helpers.launching import serve_python

from benchmarks.comm import main
from benchmarks.reductions import BARE, DDP, HOROVOD, OURS, SUMS_ONLY
from lsgd.bench.job import open_job

pytestmark = pytest.mark.distributed
TINY = ["+recipe=digits", "workers_per_pass=2", "worker_batch=3", "comm.bucket_mb=0.03"]
EXACT = ["precision=float64", "model.last_gamma=1"]


@pytest.mark.slow
@pytest.mark.horovod
def test_the_candidates_over_horovod_train_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, after 3 steps of 2 processes with 4 passes of 2 workers of 3 images each."""
    serve_python(tmp_path, monkeypatch)
    with open_job("benchmarks.reductions", "horovod", 2, [*TINY, *EXACT], limit=200) as job:
        for accumulation in (4, 1):
            facts = job.prepare(accumulation)
            assert facts["images"] == 2 * accumulation * 6
            assert len(facts["buckets"]) > 2
            assert facts["names"] == [OURS, BARE, HOROVOD]
            assert [*facts["apart"]] == [HOROVOD]
            assert facts["apart"][HOROVOD] < 1e-12
            for name in (*facts["names"], SUMS_ONLY):
                job.run(name, 2)


@pytest.mark.slow
def test_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over torch.distributed, where the candidates train the same model, too."""
    serve_python(tmp_path, monkeypatch)
    out = tmp_path / "out"
    options = ["--np", "2", "--accumulation", "1,2", "--over", "torch", "--rounds", "6"]
    assert main([*TINY, *EXACT, *options, "--passes", "2", "--out", str(out)]) == 0
    found = json.loads((out / "comm.json").read_text())
    assert [each["accumulation"] for each in found["measured"]] == [1, 2]
    assert [each["steps_per_round"] for each in found["measured"]] == [2, 1]
    for each in found["measured"]:
        assert {*each["per_second"]} == {OURS, DDP, BARE, SUMS_ONLY}
        assert [*each["apart"]] == [DDP]
        assert each["apart"][DDP] < 1e-12
        assert all(len(speeds) == 6 for speeds in each["per_second"].values())
    assert found["missing"] == {}
    readme = (out / "README.md").read_text()
    assert readme.strip() in capsys.readouterr().out
    verdict = (
        r"- 2 processes, torch.distributed \(gloo\), accumulation 2: a step of ours takes at most"
    )
    assert re.search(rf"{verdict} 1.03 times that of {DDP}: (yes|no|not resolved), ", readme)
