"""The rounds in which seeds are added until claims are decided, by runs whose errors are given."""

import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lsgd.recipe.study import Claim, Entry, Study
from lsgd.report.claims import HOLDS, claim_outcome, decide
from lsgd.report.groups import RecipeRuns
from lsgd.report.look_record import read_looks
from lsgd.report.looks import Looks
from lsgd.report.welch import sample_stats, welch_difference
from lsgd.study import __main__ as command

ERRORS = {
    "a": [10.7, 10.9, 10.5, 10.7, 10.7],
    "b": [10.1, 10.3, 9.9, 13.0, 8.0],
    "c": [10.0, 10.2, 10.4, 10.0, 10.0],
}
"""That b is as good as c shows at once; that a is worse than b would with a fourth run of a alone,
and with a fourth of each it does not."""
STUDY = Study(
    name="claimed", title="", question="", source="", baseline="a", seeds=[0, 1, 2],
    entries=[Entry(name, name) for name in ERRORS],
    claims=[
        Claim("b is as good as c", "b", "as_good_as", "c", 9.0),
        Claim("a is worse than b", "a", "worse_than", "b"),
    ],
)  # fmt: skip
MOST = 5


def run(name: str, seed: int) -> Any:
    """Return a stand-in for a run that has ended, or is planned, with its given error."""
    recipe = SimpleNamespace(name=name, seed=seed)
    return SimpleNamespace(recipe=recipe, finished=True, final_metric=ERRORS[name][seed])


class GivenRuns:
    """A stand-in for all that trains runs and reads them; it may stop or fail at any run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 100
        """The number of runs that are trained before the study is stopped."""
        self.failing: set[tuple[str, int]] = set()
        self.signals: list[int] = []
        """The stop signals that the command has received."""
        self.trained: list[tuple[str, int]] = []
        self.started: list[tuple[str, int]] = []
        monkeypatch.setattr(command, "report_folder", lambda *_: Path("claimed"))
        monkeypatch.setattr(command, "train_or_submit", self.train)
        monkeypatch.setattr(command, "study_findings", self.findings)

    def study(self) -> int:
        """Run the study from its command on, until it ends or is stopped; return the exit code."""
        request: Any = SimpleNamespace(study=STUDY, seeds=STUDY.seeds, overrides=[])
        everything = [run(name, seed) for name in ERRORS for seed in range(MOST)]
        chosen = [each for each in everything if each.recipe.seed in STUDY.seeds]
        return command.train_until_decided(request, chosen, everything, MOST, self.signals)

    def train(self, _: object, chosen: Sequence[Any], *rest: object) -> int:
        code = 0
        for each in chosen:
            of_run = each.recipe.name, each.recipe.seed
            if of_run in self.trained:
                continue
            if self.left == 0:
                return 75
            self.left -= 1
            self.started.append(of_run)
            if of_run in self.failing:
                code = 1
            else:
                self.trained.append(of_run)
        return code

    def findings(self, *_: object) -> Any:
        groups = {
            name: RecipeRuns(
                name,
                cast(Any, SimpleNamespace(name=name, data=SimpleNamespace(classes=10))),
                STUDY.seeds,
                None,
                [run(name, seed) for seed in range(MOST) if (name, seed) in self.trained],
            )
            for name in ERRORS
        }
        looks = read_looks(Path("claimed"))
        assert looks == Looks(3, MOST)
        decisions = [decide(claim, groups, looks) for claim in STUDY.claims]
        return SimpleNamespace(groups=list(groups.values()), decisions=decisions)

    def verdicts(self) -> list[tuple[str, object]]:
        return [(each.outcome, each.difference) for each in self.findings().decisions]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GivenRuns:
    monkeypatch.chdir(tmp_path)
    return GivenRuns(monkeypatch)


def test_a_claim_stops_early_and_another_at_the_most_seeds(
    given: GivenRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert given.study() == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-2:] == [
        "holds with 3 and 5 seeds: b is as good as c",
        "not resolved with 5 seeds: a is worse than b",
    ]
    assert given.started[9:] == [("a", 3), ("b", 3), ("a", 4), ("b", 4)]


@pytest.mark.parametrize("stops", [[4], [9], [10], [11], [12], [10, 2], [10, 1, 1]])
def test_a_study_that_is_interrupted_comes_to_the_same(
    stops: list[int], given: GivenRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10 runs one of the first round is there, with which the claim would be decided."""
    level = Looks(3, MOST).level(0.95)
    first = [sample_stats(ERRORS["a"][:4]), sample_stats(ERRORS["b"][:3])]
    assert claim_outcome("worse_than", welch_difference(*first, level), 0.0) == HOLDS
    assert given.study() == 0
    undisturbed = given.started, given.verdicts()
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")
    again = GivenRuns(monkeypatch)
    for again.left in stops:
        assert again.study() == 75
    again.left = 100
    assert again.study() == 0
    assert (again.started, again.verdicts()) == undisturbed


def test_a_run_that_fails_ends_the_rounds_of_its_claims(
    given: GivenRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it is started again without end; the same command later starts it once more."""
    given.failing = {("b", 3)}
    # With this fourth run of a alone the claim is open.
    monkeypatch.setitem(ERRORS, "a", [*ERRORS["a"][:3], 12.0, 10.7])
    assert given.study() == 1
    assert given.started[9:] == [("a", 3), ("b", 3)]
    assert "not resolved with 3 and 4 seeds, as a run has failed" in capsys.readouterr().out
    given.failing = set()
    assert given.study() == 0
    assert given.started[11:] == [("b", 3), ("a", 4), ("b", 4)]


@pytest.mark.parametrize(("step", "most"), [("train", 0), ("train", MOST), ("findings", MOST)])
def test_a_signal_after_the_last_run_of_a_round_stops_the_study(
    step: str,
    most: int,
    given: GivenRuns,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as Ctrl-C while the report is written: no round begins, and exit code 75 says so."""

    def signalled(*args: Any) -> Any:
        found = getattr(given, step)(*args)
        given.signals.append(signal.SIGINT)
        return found

    request = SimpleNamespace(
        study=STUDY, seeds=STUDY.seeds, overrides=[], max_seeds=most, jobs=None,
        launcher=SimpleNamespace(name="local"),
        print_only=False, cost_only=False, status_only=False, report_only=False,
    )  # fmt: skip
    everything = [run(name, seed) for name in ERRORS for seed in range(MOST)]
    monkeypatch.setattr(command, "read_request", lambda *_: request)
    monkeypatch.setattr(command, "all_runs", lambda _: everything)
    monkeypatch.setattr(command, "check_libraries", lambda: None)
    monkeypatch.setattr(command, "make_folders", lambda *_: None)
    monkeypatch.setattr(command, "catch_stop_signals", lambda: given.signals)
    name = {"train": "train_or_submit", "findings": "study_findings"}[step]
    monkeypatch.setattr(command, name, signalled)
    assert command.run_study([]) == 75
    assert len(given.started) == 9
    assert capsys.readouterr().out.endswith("stopped; rerun the same command to resume\n")
