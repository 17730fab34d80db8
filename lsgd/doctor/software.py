"""The checks of libraries and launchers, from the answers of their probes."""

import os
import re
import shutil
import sys
from collections.abc import Mapping

from lsgd import installation
from lsgd.doctor import ABSENT, FAIL, MPI_HERE, PASS, CheckItem, ProbeResult
from lsgd.job.children import run_with_limit, telling_line

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)


def python() -> CheckItem:
    """Check the version of the Python interpreter that runs the doctor."""
    finding = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return CheckItem("Python", PASS, finding, required=True)
    fix = "rebuild the environment with Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.11"
    return CheckItem("Python", FAIL, finding, fix, required=True)


def required(name: str, answer: ProbeResult) -> CheckItem:
    """Check that a library works which every run needs, or that Hydra composes a recipe.

    Torchvision has to load as lsgd loads it. Without a fix of its own, installing lsgd mends it.
    """
    facts = answer.facts
    if answer.failure_reason:
        fix = installation.install_command()
        if name == "tensorboard":
            newer = installation.pip_command("install", "tensorboard>=2.21")
            fix = f"{newer}, since older ones need a setuptools older than 82"
        return CheckItem(name, FAIL, answer.failure_reason, fix, required=True)
    match name:
        case "torch":
            cuda = "a CPU build" if facts["cuda"] is None else f"a build for CUDA {facts['cuda']}"
            found = f"{facts['version']}, {cuda}"
        case "torchvision":
            stand_in = ", loads beside this torch through lsgd.vision"
            found = facts["version"] + stand_in * facts["stood_in"]
        case "recipes":
            found = f"{facts['recipes']}, composed by Hydra"
        case _:
            found = facts["version"]
    return CheckItem(name, PASS, found, required=True)


def setuptools(answer: ProbeResult, *, horovod: ProbeResult) -> CheckItem:
    """Check that setuptools is installed, which only horovodrun and the build of Horovod import."""
    if not answer.failure_reason:
        return CheckItem("setuptools", PASS, answer.facts["version"])
    status = FAIL if horovod.facts.get("version") else ABSENT
    newer = installation.pip_command("install", "setuptools>=70.1")
    fix = f"{newer}, which horovodrun and the build of Horovod import"
    return CheckItem("setuptools", status, answer.failure_reason, fix)


def horovod(answer: ProbeResult) -> CheckItem:
    """Check that Horovod loads beside this torch, and report what it is built with."""
    build = f"{installation.script_command('setup/horovod.sh')} builds it"
    rebuild = (
        f"`{installation.pip_command('uninstall', 'horovod')}`, then {build} for this torch; until "
        "then "
        "start with lsgd launch torchrun"
    )
    if answer.failure_reason:
        return CheckItem("Horovod", FAIL, f"cannot be imported: {answer.failure_reason}", rebuild)
    if answer.facts["version"] is None:
        fix = f"{build}; lsgd launch torchrun works without"
        return CheckItem("Horovod", ABSENT, "not installed", fix)
    built = answer.facts["built"]
    parts = [name for name, included in built.items() if included]
    lacking = [name for name, included in built.items() if not included]
    finding = f"{answer.facts['version']}, built with {' and '.join(parts) or 'nothing'}"
    finding += f", without {' and '.join(lacking)}" if lacking else ""
    if not parts:
        return CheckItem("Horovod", FAIL, finding, rebuild)
    return CheckItem("Horovod", PASS, finding)


def mpi(
    horovod: ProbeResult, *, limit: float, environment: Mapping[str, str] = os.environ
) -> CheckItem:
    """Check that mpirun starts a process here, and that Horovod is built for it."""
    built = horovod.facts.get("built", {}).get("MPI", False)
    build = installation.script_command("setup/horovod.sh")
    if shutil.which("mpirun") is None:
        fix = (
            f"`sudo apt install openmpi-bin libopenmpi-dev`, then {build}; "
            "lsgd launch horovodrun and torchrun work without"
        )
        return CheckItem("MPI", FAIL if built else ABSENT, "mpirun is not found", fix)
    _, banner = run_with_limit(["mpirun", "--version"], limit=limit)
    name = re.sub(r"^mpirun \((.*?)\)", r"\1", (banner.strip() or "?").splitlines()[0])
    root = os.geteuid() == 0 and "Open MPI" in name
    permits = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    if root and not all(permit in environment for permit in permits):
        fix = "export " + " ".join(f"{permit}=1" for permit in permits)
        fix += " if root is intended, as in a container"
        return CheckItem("MPI", FAIL if built else ABSENT, f"{name}, which refuses root", fix)
    code, text = run_with_limit(["mpirun", "-np", "1", "true"], limit=limit, environment=MPI_HERE)
    if code != 0:
        why = telling_line(text) if code is not None else f"it did not end in {limit:g} s"
        fix = "make `mpirun -np 1 true` work; lsgd launch horovodrun works without"
        return CheckItem("MPI", FAIL, f"{name} starts no process: {why}", fix)
    finding = f"{name}, as root" if root else name
    if not built and horovod.facts.get("version"):
        fix = f"install libopenmpi-dev, then {build} builds Horovod with MPI"
        return CheckItem("MPI", ABSENT, f"{finding}, for which Horovod is not built", fix)
    return CheckItem("MPI", PASS, finding)


def slurm(*, limit: float, environment: Mapping[str, str] = os.environ) -> CheckItem:
    """Check that srun is installed and starts; inside a Slurm job it is required."""
    if shutil.which("srun") is None:
        if job := environment.get("SLURM_JOB_ID"):
            fix = "put Slurm's client programs into this container or image, and into PATH"
            return CheckItem("Slurm", FAIL, f"this is job {job}, but srun is not found", fix)
        fix = "lsgd launch slurm needs a cluster with Slurm"
        return CheckItem("Slurm", ABSENT, "srun is not found", fix)
    code, text = run_with_limit(["srun", "--version"], limit=limit)
    if code != 0:
        status = FAIL if "SLURM_JOB_ID" in environment else ABSENT
        why = telling_line(text) if code is not None else f"it did not end in {limit:g} s"
        fix = "make `srun --version` work on the cluster: it needs the cluster's slurm.conf"
        return CheckItem("Slurm", status, f"srun does not start: {why}", fix)
    return CheckItem("Slurm", PASS, text.strip())


def compiler(answer: ProbeResult) -> CheckItem:
    """Check that torch.compile makes kernels for the GPU of this machine.

    compile=true needs it, and so does BN of several workers in channels_last.
    """
    if why := answer.failure_reason or answer.facts["why"]:
        fix = "install gcc, python3-dev and triton; compile=false works without, more slowly"
        return CheckItem("compiler", FAIL, f"torch.compile makes no kernels: {why}", fix)
    return CheckItem("compiler", PASS, "torch.compile makes kernels for the GPU")


def apex(answer: ProbeResult) -> CheckItem:
    """Check that optim.fused=apex makes an update on this machine's GPU; torch's is the default."""
    build = installation.script_command("setup/apex.sh")
    if answer.failure_reason:
        fix = f"{build} builds NVIDIA's for this torch; optim.fused=torch works without"
        return CheckItem("apex", FAIL, answer.failure_reason.removeprefix("UsageError: "), fix)
    if answer.facts["version"] is None:
        fix = (
            f"{build} builds NVIDIA's, and PyPI's apex is another package; optim.fused=torch "
            "works without"
        )
        return CheckItem("apex", ABSENT, "not installed", fix)
    return CheckItem("apex", PASS, f"{answer.facts['version']}, NVIDIA's, makes an update")


def dali(answer: ProbeResult, *, where: str) -> CheckItem:
    """Check that DALI decodes an image; torchvision is the alternative."""
    instead = "inputs=torchvision works without"
    if answer.failure_reason:
        again = installation.pip_command("install", "--force-reinstall", "nvidia-dali-cuda130")
        fix = f"`{again}`; {instead}"
        return CheckItem(f"DALI, {where}", FAIL, f"decodes no JPEG: {answer.failure_reason}", fix)
    if answer.facts["version"] is None:
        fix = f"`{installation.install_command('dali')}`; {instead}"
        return CheckItem(f"DALI, {where}", ABSENT, "not installed", fix)
    return CheckItem(f"DALI, {where}", PASS, f"{answer.facts['version']}, decodes a JPEG")
