"""Parameter servers that wait for all workers, in jobs: all-reduce to 1e-10 in float64.

tests/helpers/server_runs.py makes all runs of a job in one launch.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from helpers import server_runs
from helpers.launching import launch
from helpers.server_runs import ALLREDUCE, CASES, EACH_STEP, RUNS
from helpers.undisturbed import assert_equal, saved
from sketches import jobs

from lsgd.comm.single import SingleComm

pytestmark = pytest.mark.side_by_side


@pytest.fixture(scope="module")
def alone(folder: Path):
    """The folder of a run by all-reduce that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        run = folder / "alone" / name
        server_runs.run(SingleComm(), run, ALLREDUCE, EACH_STEP, **RUNS[name])
        return run

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone):
    """The folder of all runs of so many processes."""

    @cache
    def made(processes: int) -> Path:
        alone("left")
        (out := folder / str(processes)).mkdir()
        done = launch("forked", processes, server_runs.__file__, str(out))
        # The launcher says so of the process that is killed when all else is done.
        assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made


def ends(out: Path, name: str) -> set[str]:
    """How a run of a job ended on its processes."""
    return {each[name] for each in json.loads((out / "ends.json").read_text())}


@pytest.mark.distributed
@pytest.mark.parametrize("processes", [2, 3])
class TestTogether:
    """Every test reads other runs of the same launch."""

    def test_each_placement_is_all_reduce(self, together, processes) -> None:
        """After 100 steps, with BN, momentum, decay and a kept tail; and where one goes on with
        what the other has saved in mid-epoch, on as many processes and on one."""
        differences = json.loads((together(processes) / "differences.json").read_text())
        assert differences.keys() > CASES.keys()
        assert len(differences) == len(CASES) + 2 * 5
        assert max(differences.values()) < 1e-10, differences

    def test_rows_of_embeddings_are_all_reduce(self, together, processes) -> None:
        """In a text and in tagged sentences, whose last step leaves a worker without any; and where
        a run goes on with rows, or after them."""
        differences = json.loads((together(processes) / "rows.json").read_text())
        assert len(differences) == 4
        assert max(differences.values()) < 1e-10, differences

    @pytest.mark.parametrize("name", ["whole", "taken-over"])
    def test_a_run_through_the_page(self, alone, together, processes, name) -> None:
        """Evaluated on all processes; the second one was left by all-reduce."""
        assert ends(together(processes), name) == {""}
        assert_equal(together(processes) / name, alone("whole"))

    def test_a_signal_reaches_all_and_all_reduce_goes_on(
        self, alone, together, processes, tmp_path
    ) -> None:
        """It is the last process that is told, which has servers only."""
        left = together(processes) / "left"
        (end,) = ends(left.parent, left.name)
        assert end.startswith("Preempted: told to leave by a signal: saved after step ")
        assert saved(left).step == saved(alone("left")).step == jobs.TOLD + 3
        run = tmp_path / "gone-on"
        assert server_runs.run(SingleComm(), run, ALLREDUCE, begin_with=left) == ""
        assert_equal(run, alone("whole"))

    @pytest.mark.parametrize("name", ["nan-loss", "nan-gradient"])
    def test_what_is_no_number_on_one_process_stops_all(self, together, processes, name) -> None:
        """At the same step, of which nothing was saved."""
        (end,) = ends(together(processes), name)
        assert end.startswith("Diverged: the loss or a gradient of step 6 is not finite")
        assert saved(together(processes) / name).step == 6

    def test_a_process_that_is_killed_is_missed_at_once(self, together, processes) -> None:
        """By all others, long before a silent one would be."""
        paths = sorted(together(processes).glob("lost-*.json"))
        assert len(paths) == processes - 1
        for lost in (json.loads(path.read_text()) for path in paths):
            assert "another process has left the job" in lost["said"]
            assert lost["seconds"] < server_runs.TIMEOUT / 2
