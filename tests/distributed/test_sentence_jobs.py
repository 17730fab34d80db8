"""A tagger in any padding, and trees folded or not, are one run on any number of processes and
workers per pass.

Words and features are dropped, the last step is short, and in float64 every run has to be that of
one process to 1e-10; what is counted is the same to the last integer.
"""

from functools import cache
from pathlib import Path

import pytest
from helpers import sentence_jobs as jobs
from helpers.launching import launch
from helpers.sentences import write_corpus
from helpers.trees import write_trees
from helpers.undisturbed import assert_equal, saved

from lsgd.comm.single import SingleComm

pytestmark = pytest.mark.side_by_side
SAME = dict.fromkeys(jobs.RUNS, "bucket") | {
    "softmax": "softmax",
    "softmax-packed": "softmax",
    "adam": "adam",
}
SAME |= dict.fromkeys(jobs.TREES, "trees") | {
    "childsum": "childsum",
    "childsum-recursive": "childsum",
}
"""The runs, with that of one process to which each is equal."""
UNDISTURBED = [name for name in SAME if name not in jobs.LEFT]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both corpora, and of all runs by the number of processes."""
    root = tmp_path_factory.mktemp("tagging")
    write_corpus(root / "corpus")
    write_trees(root / "trees")
    return root


@pytest.fixture(scope="module")
def alone(root: Path):
    """The folder of a run that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        jobs.run(SingleComm(), root / "1" / name, name)
        return root / "1" / name

    return made


@pytest.fixture(scope="module")
def together(root: Path, alone):
    """The folder of all runs of so many processes."""

    @cache
    def made(processes: int) -> Path:
        for name in jobs.LEFT:
            alone(name)
        (out := root / str(processes)).mkdir()
        done = launch("forked", processes, jobs.__file__, str(out))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made


def go_on(left: Path, root: Path) -> Path:
    """What one process makes of a run that has been left."""
    assert jobs.TOLD < saved(left).step < 14
    folder = root / "1" / f"gone-on-{left.name}-{left.parent.name}"
    assert jobs.run(SingleComm(), folder, left.name, begin_with=left) == ""
    return folder


@pytest.mark.parametrize("name", [name for name in UNDISTURBED if name != SAME[name]])
def test_padding_batching_and_passes_change_nothing(alone, name: str) -> None:
    assert_equal(alone(name), alone(SAME[name]))


@pytest.mark.parametrize(
    ("name", "rate"), [("bucket", "f1_error"), ("trees", "fine_error"), ("trees", "binary_error")]
)
def test_the_run_is_no_trivial_one(alone, name: str, rate: str) -> None:
    """Else nothing that is equal would say much: it makes 20 steps or more and learns something."""
    kept = saved(alone(name))
    assert kept.step == 21
    assert kept.rates[3]["train_loss"] < kept.rates[1]["train_loss"]
    assert 0 < kept.rates[3][f"test_{rate}"] < 100


@pytest.mark.parametrize("name", jobs.LEFT)
def test_one_process_goes_on(alone, root: Path, name: str) -> None:
    assert_equal(go_on(alone(name), root), alone(jobs.LEFT[name]), within=1e-15)


@pytest.mark.distributed
@pytest.mark.parametrize("processes", [3])
class TestTogether:
    """Every test reads other runs of the same launch."""

    @pytest.mark.parametrize("name", UNDISTURBED)
    def test_undisturbed(self, alone, together, processes, name) -> None:
        assert_equal(together(processes) / name, alone(SAME[name]))

    @pytest.mark.parametrize("name", jobs.LEFT)
    def test_all_leave_within_the_epoch_and_one_goes_on(
        self, alone, together, processes, root, name
    ) -> None:
        assert_equal(go_on(together(processes) / name, root), alone(jobs.LEFT[name]))

    @pytest.mark.parametrize("kept", jobs.LEFT.values())
    def test_what_one_process_has_left_is_taken_over(
        self, alone, together, processes, kept
    ) -> None:
        assert_equal(together(processes) / f"taken-over-{kept}", alone(kept))
