import stat
from pathlib import Path

import pytest
from helpers.broken_machine import broken

from lsgd.doctor import software
from lsgd.doctor.child import Answer, ask
from lsgd.doctor.datasets import datasets
from lsgd.doctor.item import ABSENT, FAIL, PASS

BUILT = Answer({"version": "0.28.1", "built": {"Gloo": True, "MPI": True, "NCCL": False}})
NONE = Answer({"version": None})


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
    unfit = Answer({}, "ImportError: its compiled part does not fit this torch")
    item = software.horovod(unfit)
    assert (item.status, item.required) == (FAIL, False)
    assert "setup/horovod.sh" in item.fix


def test_setuptools_is_missed_only_beside_horovod() -> None:
    gone = Answer({}, "ModuleNotFoundError: No module named 'setuptools'")
    assert software.setuptools(gone, horovod=BUILT).status == FAIL
    assert software.setuptools(gone, horovod=NONE).status == ABSENT


def test_a_dali_that_decodes_wrongly_fails() -> None:
    wrong = Answer({}, "RuntimeError: a JPEG did not come out as PIL decodes it")
    item = software.dali(wrong, where="GPU")
    assert (item.name, item.status, item.required) == ("DALI, GPU", FAIL, False)
    assert item.fix.endswith("inputs=torchvision does without")
    assert software.dali(NONE, where="CPU").status == ABSENT


@pytest.mark.parametrize("answer", [Answer({"why": "no gcc"}), Answer({}, "no gcc")])
def test_a_gpu_without_a_compiler_is_told_what_to_install(answer: Answer) -> None:
    item = software.compiler(answer)
    assert (item.status, item.required) == (FAIL, False)
    assert item.found == "torch.compile makes no kernels: no gcc"
    assert item.fix.startswith("install gcc")
    assert software.compiler(Answer({"why": ""})).status == PASS


def test_an_apex_that_makes_no_update_fails_and_a_missing_one_is_not_needed() -> None:
    item = software.apex(Answer({}, "Refused: optim.fused=apex needs NVIDIA's apex, and …"))
    assert (item.status, item.required) == (FAIL, False)
    assert item.found.startswith("optim.fused=apex needs")
    item = software.apex(NONE)
    assert (item.status, item.found) == (ABSENT, "not installed")
    assert item.fix.startswith("setup/apex.sh builds NVIDIA's, and PyPI's apex is another package")
    assert software.apex(Answer({"version": "0.1"})).found == "0.1, NVIDIA's, makes an update"


@pytest.mark.slow
def test_pypis_apex_is_no_apex_of_nvidia(tmp_path: Path) -> None:
    """Not even imported, which it would not survive."""
    found = ask("apex", limit=100, environment=broken(tmp_path, apex="import pyramid_mailer"))
    assert "is another package, as PyPI's of that name is" in software.apex(found).found


@pytest.mark.data
@pytest.mark.slow
def test_data_are_read_and_not_only_looked_for(test_data: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "data_batch_1").write_bytes(b"no pickle")
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    (tmp_path / "fashion-mnist").symlink_to((test_data / "fashion-mnist").resolve())
    where = {"LSGD_DATA": str(tmp_path)}
    found = datasets(ask("data", limit=100, environment=where), where)
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


def test_a_reader_that_crashes_keeps_what_was_read() -> None:
    digits = {
        "name": "digits", "root": "data/digits", "problem": None, "prepare": "", "bundled": True,
        "there": False, "holds": "1,797 images",
    }  # fmt: skip
    found = datasets(Answer({"datasets": [digits]}, "it crashed with SIGSEGV"), {})
    assert [item.status for item in found] == [PASS, FAIL]
    assert found[1].found == "reading stopped after digits: it crashed with SIGSEGV"


def test_a_data_folder_that_is_none(tmp_path: Path) -> None:
    [item] = datasets(Answer({"datasets": []}), {"LSGD_DATA": str(tmp_path / "typo")})
    assert (item.status, item.found) == (FAIL, f"{tmp_path}/typo is no folder")
