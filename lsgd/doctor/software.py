"""Items on libraries and launchers, from the answers of their probes."""

import os
import re
import shutil
import sys
from collections.abc import Mapping

from lsgd import installation
from lsgd.doctor.child import Answer
from lsgd.doctor.item import ABSENT, FAIL, PASS, Item
from lsgd.job.children import finished, telling_line

OLDEST_PYTHON = (3, 11)


def python() -> Item:
    """The Python interpreter that runs the doctor."""
    finding = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if sys.version_info >= OLDEST_PYTHON:
        return Item("Python", PASS, finding, required=True)
    fix = "make the environment anew with Python 3.11 or newer: make PYTHON=/path/to/python3.11"
    return Item("Python", FAIL, finding, fix, required=True)


def torch(answer: Answer) -> Item:
    """Whether torch loads, and which build it is."""
    if answer.why:
        return Item("torch", FAIL, answer.why, installation.install(), required=True)
    cuda = answer.facts["cuda"]
    build = "a CPU build" if cuda is None else f"a build for CUDA {cuda}"
    return Item("torch", PASS, f"{answer.facts['version']}, {build}", required=True)


def torchvision(answer: Answer) -> Item:
    """Whether torchvision loads in the way lsgd loads it; no model can be made without it."""
    if answer.why:
        return Item("torchvision", FAIL, answer.why, installation.install(), required=True)
    finding = answer.facts["version"]
    if answer.facts["stood_in"]:
        finding += ", loads beside this torch through lsgd.vision"
    return Item("torchvision", PASS, finding, required=True)


def tensorboard(answer: Answer) -> Item:
    """Whether the curves of a run can be written."""
    if answer.why:
        newer = installation.pip("install", "tensorboard>=2.21")
        fix = f"{newer}, since older ones need a setuptools older than 82"
        return Item("tensorboard", FAIL, answer.why, fix, required=True)
    return Item("tensorboard", PASS, answer.facts["version"], required=True)


def setuptools(answer: Answer, *, horovod: Answer) -> Item:
    """Whether setuptools is installed, which only horovodrun and the build of Horovod import."""
    if not answer.why:
        return Item("setuptools", PASS, answer.facts["version"])
    status = FAIL if horovod.facts.get("version") else ABSENT
    newer = installation.pip("install", "setuptools>=70.1")
    fix = f"{newer}, which horovodrun and the build of Horovod import"
    return Item("setuptools", status, answer.why, fix)


def recipes(answer: Answer) -> Item:
    """Whether a recipe can be composed."""
    if answer.why:
        return Item("recipes", FAIL, answer.why, installation.install(), required=True)
    return Item("recipes", PASS, f"{answer.facts['recipes']}, composed by Hydra", required=True)


def horovod(answer: Answer) -> Item:
    """Whether Horovod loads beside this torch, and what it is built with."""
    build = f"{installation.script('setup/horovod.sh')} builds it"
    rebuild = (
        f"`{installation.pip('uninstall', 'horovod')}`, then {build} for this torch; until then "
        "start with lsgd launch torchrun"
    )
    if answer.why:
        return Item("Horovod", FAIL, f"cannot be imported: {answer.why}", rebuild)
    if answer.facts["version"] is None:
        fix = f"{build}; lsgd launch torchrun does without"
        return Item("Horovod", ABSENT, "not installed", fix)
    built = answer.facts["built"]
    parts = [name for name, included in built.items() if included]
    lacking = [name for name, included in built.items() if not included]
    finding = f"{answer.facts['version']}, built with {' and '.join(parts) or 'nothing'}"
    finding += f", without {' and '.join(lacking)}" if lacking else ""
    if not parts:
        return Item("Horovod", FAIL, finding, rebuild)
    return Item("Horovod", PASS, finding)


def mpi(horovod: Answer, *, limit: float, environment: Mapping[str, str] = os.environ) -> Item:
    """Whether mpirun starts a process here; Horovod has to be built for it."""
    built = horovod.facts.get("built", {}).get("MPI", False)
    build = installation.script("setup/horovod.sh")
    if shutil.which("mpirun") is None:
        fix = (
            f"`sudo apt install openmpi-bin libopenmpi-dev`, then {build}; "
            "lsgd launch horovodrun and torchrun do without"
        )
        return Item("MPI", FAIL if built else ABSENT, "mpirun is not found", fix)
    _, banner = finished(["mpirun", "--version"], limit=limit)
    name = re.sub(r"^mpirun \((.*?)\)", r"\1", (banner.strip() or "?").splitlines()[0])
    root = os.geteuid() == 0 and "Open MPI" in name
    permits = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    if root and not all(permit in environment for permit in permits):
        fix = "export " + " ".join(f"{permit}=1" for permit in permits)
        fix += " where root is meant, as in a container"
        return Item("MPI", FAIL if built else ABSENT, f"{name}, which refuses root", fix)
    code, text = finished(["mpirun", "-np", "1", "true"], limit=limit)
    if code != 0:
        why = telling_line(text) if code is not None else f"it did not end in {limit:g} s"
        fix = "make `mpirun -np 1 true` work; lsgd launch horovodrun does without"
        return Item("MPI", FAIL, f"{name} starts no process: {why}", fix)
    finding = f"{name}, as root" if root else name
    if not built and horovod.facts.get("version"):
        fix = f"install libopenmpi-dev, then {build} builds Horovod with MPI"
        return Item("MPI", ABSENT, f"{finding}, for which Horovod is not built", fix)
    return Item("MPI", PASS, finding)


def slurm(*, limit: float, environment: Mapping[str, str] = os.environ) -> Item:
    """Whether srun is installed and starts; inside a job of Slurm it has to."""
    if shutil.which("srun") is None:
        if job := environment.get("SLURM_JOB_ID"):
            fix = "put Slurm's client programs into this container or image, and into PATH"
            return Item("Slurm", FAIL, f"this is job {job}, but srun is not found", fix)
        fix = "lsgd launch slurm would need a cluster with Slurm"
        return Item("Slurm", ABSENT, "srun is not found", fix)
    code, text = finished(["srun", "--version"], limit=limit)
    if code != 0:
        status = FAIL if "SLURM_JOB_ID" in environment else ABSENT
        why = telling_line(text) if code is not None else f"it did not end in {limit:g} s"
        fix = "on a cluster `srun --version` works: it wants the cluster's slurm.conf"
        return Item("Slurm", status, f"srun does not start: {why}", fix)
    return Item("Slurm", PASS, text.strip())


def compiler(answer: Answer) -> Item:
    """Whether torch.compile makes kernels for this machine's GPU, which compile=true and BN of
    several workers in channels_last take."""
    if why := answer.why or answer.facts["why"]:
        fix = "install gcc, python3-dev and triton; compile=false does without, more slowly"
        return Item("compiler", FAIL, f"torch.compile makes no kernels: {why}", fix)
    return Item("compiler", PASS, "torch.compile makes kernels for the GPU")


def apex(answer: Answer) -> Item:
    """Whether optim.fused=apex makes updates on this machine's GPU; torch's own are the default."""
    build = installation.script("setup/apex.sh")
    if answer.why:
        fix = f"{build} builds NVIDIA's for this torch; optim.fused=torch does without"
        return Item("apex", FAIL, answer.why.removeprefix("Refused: "), fix)
    if answer.facts["version"] is None:
        fix = (
            f"{build} builds NVIDIA's, and PyPI's apex is another package; optim.fused=torch "
            "does without"
        )
        return Item("apex", ABSENT, "not installed", fix)
    return Item("apex", PASS, f"{answer.facts['version']}, NVIDIA's, makes an update")


def dali(answer: Answer, *, where: str) -> Item:
    """Whether DALI decodes an image; without DALI torchvision does."""
    instead = "inputs=torchvision does without"
    if answer.why:
        again = installation.pip("install", "--force-reinstall", "nvidia-dali-cuda130")
        fix = f"`{again}`; {instead}"
        return Item(f"DALI, {where}", FAIL, f"decodes no JPEG: {answer.why}", fix)
    if answer.facts["version"] is None:
        fix = f"`{installation.install('dali')}`; {instead}"
        return Item(f"DALI, {where}", ABSENT, "not installed", fix)
    return Item(f"DALI, {where}", PASS, f"{answer.facts['version']}, decodes a JPEG")
