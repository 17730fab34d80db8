import stat
from pathlib import Path

import pytest
from helpers.broken_machine import broken_environment
from helpers.composed import compose_recipe

from lsgd.doctor import ABSENT, FAIL, PASS, CheckItem, ProbeResult, probe, run_probe, software
from lsgd.doctor.datasets import datasets

BUILT = ProbeResult({"version": "0.28.1", "built": {"Gloo": True, "MPI": True, "NCCL": False}})
NONE = ProbeResult({"version": None})


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_mpirun_is_missed_only_by_a_horovod_built_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert software.mpi(BUILT, limit=60).status == FAIL
    assert software.mpi(NONE, limit=60).status == ABSENT
    assert "openmpi-bin" in software.mpi(BUILT, limit=60).fix


def test_an_mpirun_that_starts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(
        tmp_path, "mpirun", '[ "$1" = --version ] && echo "HYDRA 4.1" || { echo no slots; false; }'
    )
    item = software.mpi(BUILT, limit=60)
    assert (item.status, item.found) == (FAIL, "HYDRA 4.1 starts no process: no slots")


@pytest.mark.mpi
def test_mpirun_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one; only Open MPI refuses root."""
    monkeypatch.setattr(software.os, "geteuid", lambda: 0)
    item = software.mpi(BUILT, limit=60, environment={})
    if "Open MPI" in item.found:
        assert item.status == FAIL
        assert "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in item.fix
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    assert software.mpi(BUILT, limit=60).status == PASS


def test_srun_is_needed_inside_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert software.slurm(limit=60, environment={}).status == ABSENT
    job = software.slurm(limit=60, environment={"SLURM_JOB_ID": "17"})
    assert (job.status, job.found) == (FAIL, "this is job 17, but srun is not found")
    program(tmp_path, "srun", "echo slurm 22.05.8")
    assert software.slurm(limit=60, environment={}).found == "slurm 22.05.8"
    program(tmp_path, "srun", "echo srun: error: no config >&2; exit 1")
    assert software.slurm(limit=60, environment={}).status == ABSENT
    job = software.slurm(limit=60, environment={"SLURM_JOB_ID": "17"})
    assert (job.status, job.found) == (FAIL, "srun does not start: srun: error: no config")


def test_horovod_says_what_it_is_built_with() -> None:
    assert software.horovod(BUILT).found == "0.28.1, built with Gloo and MPI, without NCCL"
    unfit = ProbeResult({}, "ImportError: its compiled extension does not match this torch")
    item = software.horovod(unfit)
    assert (item.status, item.required) == (FAIL, False)
    assert "setup/horovod.sh" in item.fix


WRONG = ProbeResult({}, "RuntimeError: it does something else")


@pytest.mark.parametrize(
    ("item", "fix"),
    [
        (software.setuptools(WRONG, horovod=BUILT), "setuptools"),
        (software.dali(WRONG, where="GPU"), "inputs=torchvision works without"),
        (software.compiler(WRONG), "install gcc"),
        (software.compiler(ProbeResult({"why": "it does something else"})), "install gcc"),
        (software.apex(WRONG), "setup/apex.sh"),
    ],
)
def test_what_works_wrongly_fails_and_ends_no_run(item: CheckItem, fix: str) -> None:
    assert (item.status, item.required) == (FAIL, False)
    assert "it does something else" in item.found
    assert fix in item.fix


def test_what_is_missing_is_not_needed() -> None:
    for item in (
        software.setuptools(WRONG, horovod=NONE),
        software.dali(NONE, where="CPU"),
        software.apex(NONE),
    ):
        assert item.status == ABSENT
    assert software.apex(NONE).fix.startswith("setup/apex.sh builds NVIDIA's, and PyPI's apex is")
    assert software.apex(ProbeResult({"version": "0.1"})).found == "0.1, NVIDIA's, makes an update"
    assert software.compiler(ProbeResult({"why": ""})).status == PASS


@pytest.mark.slow
def test_pypis_apex_is_no_apex_of_nvidia(tmp_path: Path) -> None:
    """Not even imported, which it would not survive."""
    found = run_probe(
        "apex", limit=100, environment=broken_environment(tmp_path, apex="import pyramid_mailer")
    )
    assert "is another package, such as the apex of PyPI" in software.apex(found).found


def test_a_folder_that_a_desktop_has_looked_into_is_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    data = compose_recipe("+recipe=bs256").data
    (root := tmp_path / "imagenet").mkdir()
    (root / ".DS_Store").touch()
    (root / "README.md").touch()
    assert not probe._dataset(data)["there"]
    (root / "train").mkdir()
    assert probe._dataset(data)["there"]


@pytest.mark.data
@pytest.mark.slow
def test_data_are_read_and_not_only_looked_for(test_data: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "data_batch_1").write_bytes(b"no pickle")
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    (tmp_path / "fashion-mnist").symlink_to((test_data / "fashion-mnist").resolve())
    where = {"LSGD_DATA": str(tmp_path)}
    found = datasets(run_probe("data", limit=100, environment=where), where)
    items = {item.name: item for item in found}
    assert items["LSGD_DATA"].found == f"{tmp_path} has cifar10, fashion-mnist, imagenet"
    assert items["data: fashion-mnist"].status == PASS
    assert items["data: fashion-mnist"].found == f"70,000 images at {tmp_path}/fashion-mnist"
    assert items["data: cifar10"].status == FAIL
    assert "cannot be read" in items["data: cifar10"].found
    assert items["data: imagenet"].status == FAIL
    assert "has no index yet" in items["data: imagenet"].found
    assert f"python -m lsgd.prepare imagenet {tmp_path}/imagenet" in items["data: imagenet"].fix
    assert items["data: tiny-imagenet"].status == ABSENT


def test_a_reader_that_crashes_keeps_what_was_read(tmp_path: Path) -> None:
    digits = {
        "name": "digits", "root": "data/digits", "problem": None, "prepare": "", "bundled": True,
        "there": False, "holds": "1,797 images",
    }  # fmt: skip
    found = datasets(ProbeResult({"datasets": [digits]}, "it crashed with SIGSEGV"), {})
    assert [item.status for item in found] == [PASS, FAIL]
    assert found[1].found == "reading stopped after digits: it crashed with SIGSEGV"


def test_a_data_folder_that_is_none_fails_and_stops_no_other_check(tmp_path: Path) -> None:
    """The datasets below a URL have no folder, which is no fault of their own."""
    [item] = datasets(ProbeResult({"datasets": []}), {"LSGD_DATA": str(tmp_path / "typo")})
    assert (item.status, item.found) == (FAIL, f"{tmp_path}/typo is not a folder")
    below = ProbeResult({"datasets": [probe._unknown("ptb", "LSGD_DATA=s3://bucket is a URL")]})
    [item] = datasets(below, {"LSGD_DATA": "s3://bucket"})
    assert (item.name, item.status) == ("LSGD_DATA", FAIL)
    assert item.found.startswith("s3://bucket is a URL")
    assert item.fix.startswith("copy it from or to a folder")
