"""The launcher of the trials, and the options that it is given for each."""

import os
import re
import shutil
from pathlib import Path

import pytest
from helpers.base_recipe import BASE, with_fields
from helpers.composed import compose_recipe
from helpers.studies import StudyFolder

from lsgd import paths
from lsgd.launch.options import option_words, read_options
from lsgd.planned import PlannedRun, RunLauncher, limit_threads
from lsgd.study import slurm_jobs
from lsgd.study.__main__ import main


def trial_launcher(name: str, options: list[str]) -> RunLauncher:
    _, values, _ = read_options(name, options)
    return RunLauncher(name, values)


def test_trials_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2 jobs of 2 processes has a quarter of them; what the user has set stays."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for name, options, given, expected in (
        ("mpirun", ["--np", "2"], None, "4"),
        ("mpirun", ["--np", "64"], None, "1"),
        ("mpirun", ["--np", "2"], "3", "3"),
        ("mpirun", ["--np", "2"], "all", "4"),
        ("mpirun", ["--hosts", "a:2,b:2"], None, None),
        # The cores of the login node say nothing about those of a job.
        ("slurm", ["--gpus", "2"], None, None),
        ("slurm", ["--np", "2"], None, None),
    ):
        monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": given} if given else {})
        limit_threads(trial_launcher(name, options), jobs=2)
        assert os.environ.get("OMP_NUM_THREADS") == expected


@pytest.mark.usefixtures("inside")
def test_each_has_a_name_of_its_own_on_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kind", "mpijob", "--image", "a/b:1", "--claim", "c"]
    assert main(["+study=small", "seeds=[0,1]", "--launch", "k8s", *options, "--print"]) == 0
    said = capsys.readouterr().out
    commands = [line.split() for line in said.splitlines() if line[0] != "#"]
    assert len({command[-1] for command in commands}) == 4
    for command in commands:
        [folder] = [word for word in command if word.startswith("run_dir=")]
        assert folder.startswith("run_dir=/lsgd/runs/trials/digits")
        assert command[-2] == "--name"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", command[-1])
        assert len(command[-1]) <= 63


@pytest.mark.parametrize("name", ["4711", "x" * 100, "1" * 100, "a.b+c_", "läuf"])
@pytest.mark.parametrize("most", [1, 5000])
def test_any_recipe_has_a_name_that_kubernetes_takes(name: str, most: int) -> None:
    """With all of its pods' names, and with the end that tells one trial from another."""
    trial = PlannedRun(with_fields(BASE, name=name), [])
    options = {"--kind": "mpijob", "--image": "i", "--claim": "c"}
    options |= {"--nodes": str(most), "--gpus": "1"}
    command = RunLauncher("k8s", options).command(trial)
    job, nodes = (command[command.index(option) + 1] for option in ("--name", "--nodes"))
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job)
    assert len(f"{job}-worker-{int(nodes) - 1}") <= 63
    assert len(f"{job}-launcher") <= 63
    assert job.endswith(f"-{trial.recipe.fingerprint[:8]}")


@pytest.mark.parametrize(
    ("launcher", "options", "workers", "expected"),
    [
        ("slurm", "--nodes 32", 8, (8, "--nodes 1 --gpus 8")),
        ("slurm", "--nodes 32", 256, (256, "--nodes 32")),
        ("slurm", "--nodes=4", 16, (16, "--nodes 2 --gpus 8")),
        (
            "slurm",
            "--gres gpu:h100:4,nvme:1",
            2,
            (2, "--gres gpu:h100:2,nvme:1 --gpus 2 --nodes 1"),
        ),
        ("slurm", "", 2, (2, "--nodes 1 --gpus 2")),
        ("slurm", "--np 12 --nodes 3 --cpus 4", 2, (2, "--np 2 --nodes 2 --cpus 4")),
        ("k8s", "--nodes 2 --gpus 4", 6, (4, "--nodes 1 --gpus 4")),
        ("mpirun", "--gpus 8", 4, (4, "--gpus 4 --nodes 1")),
        ("mpirun", "--hosts a:8,b:8", 4, (4, "--hosts a:8,b:8 --np 4")),
        ("horovodrun", "--hosts a:8,b:8", 16, (16, "--hosts a:8,b:8")),
        ("local", "--np 3", 2, (2, "--np 2")),
        ("local", "", 1, (1, "--np 1")),
    ],
)
def test_no_trial_has_more_processes_than_workers(
    launcher: str, options: str, workers: int, expected: tuple[int, str]
) -> None:
    processes, fitted = trial_launcher(launcher, options.split()).fit_processes(workers)
    assert (processes, " ".join(f"{name} {value}" for name, value in fitted.items())) == expected


@pytest.mark.parametrize(
    ("recipe", "options", "expected"),
    [
        # Small images fill one GPU, whatever the minibatch; a step of bs256 fills the paper's 8.
        ("fashion_bs8k", "--nodes 4", (1, "--nodes 1 --gpus 1")),
        ("bs256", "--nodes 4", (8, "--nodes 1 --gpus 8")),
        ("bs8k", "--nodes 4", (32, "--nodes 4")),
        ("fashion_bs8k", "--gpus 4", (4, "--gpus 4")),
        ("fashion_bs8k", "--np 4 --cpus 2", (4, "--np 4 --cpus 2")),
        ("ptb_small", "--nodes 4", (1, "--nodes 1 --gpus 1")),
    ],
)
def test_a_trial_in_a_queue_takes_as_few_gpus_as_its_steps_fill(
    recipe: str, options: str, expected: tuple[int, str]
) -> None:
    """Unless the options give their number."""
    processes, fitted = trial_launcher("slurm", options.split()).fit(
        compose_recipe(f"+recipe={recipe}")
    )
    assert (processes, " ".join(option_words(fitted))) == expected


def test_a_study_on_slurm_is_one_array_with_a_report_after_it(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One GPU each is no whole node; the report asks for none, and the hours are said before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    options = "--launch slurm --gpus 1 --account phys --time 30 --jobs 2 --images-per-second 9"
    options += " --container i --mount /apps:/apps"
    assert main(["+study=small", *options.split(), "--print"]) == 0
    said, advice = capsys.readouterr()
    assert advice.count("add --cpus 12") == 1
    array, report = said.split("# after them:\n")
    assert array.count("#!/usr/bin/env bash") == 1
    assert "#SBATCH --array=0-3%2\n" in array
    assert not re.search("--exclusive|--mem", array)
    assert 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in array
    assert "/arrays/small-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.log" in array
    folders = re.findall(r"^\d\) run_dir=(\S+) train=\(.* run_dir=(\S+)\) ;;$", array, re.M)
    assert len({*folders}) == 4
    assert all(folder == trained for folder, trained in folders)
    for script in (array, report):
        assert "#SBATCH --account=phys\n" in script
        assert "#SBATCH --time=30\n" in script
        # The image may have its software there, for the report too.
        assert re.search(r"srun .*--container-image=i .*\\,/apps:/apps ", script)
    assert "--gpus" not in report.partition("exec")[0]
    assert "--report-only" in report
    assert re.search(
        "^# cost: 4 runs to train, .* GPU hours.* by --images-per-second", report, re.M
    )
    assert "# cost by --time 30: at most 2.0 GPU hours" in report


def test_studies_that_share_runs_lock_them_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In orders of their own, two that are submitted at once could wait for each other forever."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(PlannedRun, "active_job", "job 1")
    locked: list[str] = []
    monkeypatch.setattr(slurm_jobs, "lock", lambda file, *, wait: locked.append(file.name))
    runs = [PlannedRun(with_fields(BASE, seed=seed), []) for seed in (1, 0, 2)]
    for order in (runs, runs[::-1]):
        launcher = trial_launcher("slurm", ["--np", "1"])
        assert not slurm_jobs.submit_arrays(launcher, "small", order, None, [])
    assert locked[:3] == locked[3:]


def test_processes_of_servers_come_on_top() -> None:
    recipe = with_fields(BASE, workers=4, strategy__name="sync", strategy__servers=3)
    command = trial_launcher("local", ["--np", "9"]).command(PlannedRun(recipe, ["strategy=sync"]))
    assert command[command.index("--np") + 1] == "7"


@pytest.mark.slow
def test_a_queue_that_does_not_answer_for_one_costs_no_other(place: StudyFolder) -> None:
    """The first is queued where nobody can be asked; the others are still submitted."""
    programs = place.folder / "bin"
    programs.mkdir()
    for name, text in (("sbatch", "echo Submitted batch job 7"), ("squeue", "echo no >&2; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    submit = ["+study=small", "seeds=[0]", "--launch", "slurm", "--np", "1"]
    _, said = place.run(*submit, "--print")
    first = place.folder / re.search(r"run_dir=(\S+digits-seed0\S+)", said)[1]
    first.parent.mkdir(parents=True)
    first.with_name(f"{first.name}.job").write_text("Submitted batch job 6\n")
    place.path = f"{programs}:{place.path}"
    code, said = place.run(*submit)
    assert code == 75
    assert "digits, seed 0: it is unknown whether job 6 still trains" in said
    assert "small: job 7 has 1 run, processes of each: 1" in said
    # The next command asks for the array's own job.
    code, said = place.run(*submit)
    assert code == 1
    assert "digits_unscaled, seed 0: it is unknown whether job 7_0 still trains" in said
