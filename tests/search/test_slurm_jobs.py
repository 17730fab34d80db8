"""A search as arrays of Slurm jobs: what is printed and submitted, and what one job does."""

import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.studies import StudyFolder

from lsgd import paths
from lsgd.launch.submission import MOST_JOBS
from lsgd.planned import PlannedRun
from lsgd.search import backends, slurm_jobs
from lsgd.search.__main__ import main
from lsgd.search.backends import JobStepBackend, JobStepLauncher
from lsgd.search.command_line import SearchRequest, read_request
from lsgd.search.slurm_jobs import PendingWork, cost_lines, trial_arrays
from lsgd.search.space import SearchSpace
from lsgd.search.trial import FAILED, PRUNED, RUNNING, StopRequest, Trial
from lsgd.supervise.verdict import ExitSummary

SMALL = ["+search=small", "--launch", "slurm", "--gpus", "1"]
FOLDER = Path("runs/searches/small")
TRAINED = Path(__file__).parent.parent / "helpers/small_trial.py"


@pytest.fixture
def here(
    installation: Path, composed_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a test, with the search `small` of the installation."""
    monkeypatch.setattr(SearchSpace, "check", lambda _: None)  # which takes seconds
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(*words: str) -> SearchRequest:
    found = read_request("", [*SMALL, *words])
    assert isinstance(found, SearchRequest)
    return found


def test_what_is_printed_is_an_array_a_comparison_and_a_report(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On as many GPUs as are asked for, which is no whole node; the hours are said before."""
    site = "--account phys --time 30 --container i --mount /apps:/apps"
    words = [*site.split(), "--jobs", "2", "--images-per-second", "9", "holdout_seeds=[5]"]
    assert main([*SMALL, *words, "--print"]) == 0
    said, advice = capsys.readouterr()
    assert advice.count("add --cpus 12") == 1
    trials, comparison, report = said.split("#!/usr/bin/env bash\n")[1:]
    assert "#SBATCH --array=0-5%2\n" in trials
    assert "#SBATCH --array=0,1%2\n" in comparison
    assert "#SBATCH --output=runs/searches/small/jobs/trial-%A_%a.log\n" in trials
    for script in (trials, comparison):
        assert "#SBATCH --gpus-per-node=1\n" in script
        assert not re.search("--exclusive|--mem", script)
        # The command of the step, which the search that begins here starts for each run.
        program, step = re.search(
            r"^(\S+ -m lsgd.search .*) -- \\\n    (.*)$", script, re.M
        ).groups()
        assert "--launch" not in shlex.split(program)
        assert "holdout_seeds=[5]" in shlex.split(program)
        assert shlex.split(step)[0] == "srun"
        assert "--container-image=i" in step
        assert shlex.split(step)[-3:] == ["python3", "-m", "lsgd.train"]
        assert '75)); then scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in script
    for script in (trials, comparison, report):
        assert "#SBATCH --account=phys\n" in script
    assert "--report-only" in report
    assert "--gpus" not in report.partition("exec")[0]
    assert re.search(
        r"^# cost: 6 trials and 2 runs that compare, at most \S+ GPU hours, .*, 2 at a time "
        r"\(digits by --images-per-second\)\n# cost by --time 30: at most 4.0 GPU hours, if no",
        said, re.M,
    )  # fmt: skip
    assert not [*here.iterdir()]


def test_a_search_over_epochs_costs_what_its_longest_trials_cost(here: Path) -> None:
    """300 epochs of 1,442 images, and not the recipe's 30, at 1,000 images/s."""
    words = "recipe=digits epochs=[5,300] schedule.milestones=[] --launch slurm --np 1 --cpus 2"
    wanted = read_request("", [*words.split(), "--images-per-second", "1000"])
    assert isinstance(wanted, SearchRequest)
    [line] = cost_lines(wanted, PendingWork(2, []), [])
    assert line.startswith("cost: 2 trials, at most 0.5 CPU hours, 7 min together, 2 at a time")


@pytest.mark.parametrize(
    ("words", "indexes"),
    [
        ("", ["0-5"]),
        ("--jobs 4", ["0-5%4"]),
        ("trials=1", ["0-0"]),
        # A trial learns from those before it, or is compared with them.
        ("sampler=tpe", ["0-5%1"]),
        ("prune.rule=median", ["0-5%1"]),
        ("sampler=tpe --jobs 3", ["0-5%3"]),
        (f"trials={MOST_JOBS + 1}", [f"0-{MOST_JOBS - 1}", "0-0"]),
    ],
)
def test_how_many_trials_are_trained_at_a_time(words: str, indexes: list[str], here: Path) -> None:
    asked = request(*words.split())
    work = PendingWork(asked.space.search.trial_count, [])
    scripts = [array.script for array in trial_arrays(asked, FOLDER, work)]
    assert [re.search("--array=(.*)", script)[1] for script in scripts] == indexes


def test_a_job_has_the_gpus_that_its_smallest_steps_fill(here: Path) -> None:
    """All jobs of an array have the same, and no process is without a worker."""
    for words, processes in (("--nodes 4", 1), ("--gpus 8", 8), ("workers=2 --gpus 8", 2)):
        found = read_request("", ["+search=small", "--launch", "slurm", *words.split()])
        assert isinstance(found, SearchRequest)
        assert slurm_jobs.fit(found)[0] == processes
    varied = ["recipe=digits", "workers=[4,8]", "--launch", "slurm", "--gpus", "8"]
    found = read_request("", varied)
    assert isinstance(found, SearchRequest)
    assert slurm_jobs.fit(found)[0] == 4


Programs = Callable[..., None]


@pytest.fixture
def programs(here: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Make programs of Slurm by their shell scripts, in place of those of the machine."""
    folder = here / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("cat", "wc"):
        (folder / name).symlink_to(f"/bin/{name}")

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    return write


def test_what_is_submitted_is_submitted_once(
    here: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each after those before it, in arrays that the cluster takes, and again once all are gone."""
    words = [*SMALL, "trials=5", "holdout_seeds=[5]", "--time", "60"]
    assert main(words) == 2
    assert "sbatch is not installed; submit where Slurm is" in capsys.readouterr().err
    programs(
        sbatch=f'echo "$@" >> {here}/asked\necho Submitted batch job $(wc -l < {here}/asked)',
        scontrol="echo 'MaxArraySize            = 3'",
        squeue=f"cat {here}/queue",
    )
    assert main(words) == 75
    said = capsys.readouterr().out
    assert "cost by --time 60: at most 7.0 GPU hours" in said
    for line in ("job 1: 3 trials", "job 2: 2 trials", "job 3: 2 comparisons", "job 4 will write"):
        assert line in said
    asked = (here / "asked").read_text().splitlines()
    after = [re.findall(r"--dependency=afterany:(\S+) ", line) for line in asked]
    assert after == [[], ["1"], ["1:2"], ["1:2:3"]]
    (here / "queue").write_text("PENDING\n")
    assert main(words) == 75
    assert "jobs 1, 2, 3, 4 of this search are pending or running" in capsys.readouterr().out
    programs(squeue="echo no answer >&2; exit 1")
    assert main(words) == 2
    assert "unknown whether jobs of this search are queued (squeue fails: no" in (
        capsys.readouterr().err
    )
    # The site refuses the next ones, whatever it is that they ask for.
    programs(squeue="echo Invalid job id >&2; exit 1", sbatch="echo no account >&2; exit 1")
    assert main(words) == 2
    assert re.search(r"sbatch refuses \S+/trial-3.sh: no account", capsys.readouterr().err)
    assert (here / "asked").read_text().splitlines() == asked


def test_jobs_on_another_cluster_are_queued_there(here: Path, programs: Programs) -> None:
    programs(squeue='[ "$1 $2" != "--clusters c2" ] || echo PENDING')
    (FOLDER / slurm_jobs.JOBS).mkdir(parents=True)
    for number, cluster in ((9, ""), (10, " on cluster c2"), (11, " on cluster c2")):
        answer = f"Submitted batch job {number}{cluster}\n"
        (FOLDER / slurm_jobs.JOBS / f"trial-{number}.job").write_text(answer)
    assert slurm_jobs._queued_jobs(FOLDER) == ["10;c2", "11;c2"]


def test_the_status_skips_trials_that_the_recipe_refuses(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have no run."""
    found = read_request("", ["recipe=digits", "workers=[1,64]", "worker_batch=32"])
    assert isinstance(found, SearchRequest)
    trials = [
        Trial(number, {"workers": workers}, FAILED, None, {}, "why", None, None)
        for number, workers in enumerate((64, 1))
    ]
    slurm_jobs.print_status(found, trials, FOLDER)
    said = capsys.readouterr().out
    assert "trial 1" not in said
    assert "trial 2, seed 0" in said


@pytest.mark.parametrize(("state", "code"), [(PRUNED, 0), (FAILED, 0), (RUNNING, 1)])
def test_the_status_is_1_only_if_a_trial_is_left_without_a_job(
    state: str, code: int, here: Path, programs: Programs
) -> None:
    """Nobody trains a pruned or failed trial on, whose run has not ended."""
    programs()
    found = read_request("", ["recipe=digits", "workers=[1,2]", "holdout_seeds=[]"])
    assert isinstance(found, SearchRequest)
    trials = [
        Trial(number, {"workers": workers}, state, None, {}, "", None, None)
        for number, workers in enumerate((1, 2))
    ]
    assert slurm_jobs.print_status(found, trials, FOLDER) == code


@pytest.mark.distributed
def test_a_job_trains_one_trial_and_a_later_one_what_it_has_left(
    place: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is preempted, one crashes; the comparison waits for all, and the report for nobody."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    words = ["+search=small", "trials=2", "holdout_seeds=[5]"]

    def job(kind: str, **plan: str) -> tuple[int, str]:
        step = ["--", sys.executable, str(TRAINED)]
        return place.run(*words, "--array-job", kind, *step, command="search", **plan)

    code, said = job("trial", **{"digits-seed0": "75"})
    assert code == 75, said
    assert "stopped; a requeued job resumes it" in said
    code, said = job("trial")
    assert code == 0, said
    assert "trial 1 of 2" in said
    assert "resumes after epoch 1" in said
    code, said = job("comparison")
    assert code == 1, said
    assert "1 trial of the search has not ended, so that the best one is unknown" in said
    code, said = job("trial", **{"digits-seed0": "9"})
    assert code == 1, said
    assert "trial 2 of 2" in said
    assert "failed: exit code 1" in said
    code, said = job("trial")
    assert (code, "no trial is left to train" in said) == (0, True), said
    code, said = job("comparison")
    assert code == 0, said
    assert "the unchanged recipe, seed 5: top-1 error 15.00 %" in said
    code, said = place.run(*words, "--report-only", command="search")
    assert code == 0, said
    assert "best: top-1 error" in said
    assert (
        "2 trials of 2: 1 finished, 1 failed." in (place.folder / FOLDER / "README.md").read_text()
    )


def test_a_step_that_slurm_preempts_ends_the_job_and_one_that_is_pruned_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which then trains no other trial in the two minutes that are left."""
    monkeypatch.setenv("SLURM_NTASKS", "4")
    trial = PlannedRun(compose_recipe("+recipe=digits"), ["seed=0"])
    launcher = JobStepLauncher("srun", {}, ("srun", "python"))
    assert launcher.fit(trial.recipe)[0] == 4
    train = ["+recipe=digits", "seed=0", f"run_dir={trial.folder}"]
    assert launcher.command(trial) == ["srun", "python", *train]
    monkeypatch.setattr(backends, "attempt_run", lambda *_: ExitSummary(75, "was preempted"))
    signals: list[int] = []
    stop, backend = StopRequest(signals), JobStepBackend(launcher, signals)
    stop.prune()
    backend.train(trial, stop, print)
    assert not signals
    backend.train(trial, StopRequest(signals), print)
    assert signals == [signal.SIGUSR2]
