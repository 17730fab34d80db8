"""The checks of all-reduce: a real one between two processes with each installed library."""

import sys
from collections.abc import Iterator

from lsgd.doctor import ABSENT, FAIL, MPI_HERE, PASS, CheckItem, ProbeResult, run_probe
from lsgd.job.network import TORCHRUN_HERE

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", *TORCHRUN_HERE, "--nproc-per-node", "2")
HOROVODRUN = (
    *(PYTHON, "-m", "horovod.runner.launch", "--gloo", "--disable-cache"),
    *("-np", "2", PYTHON),
)
MPIRUN = ("mpirun", "-np", "2", PYTHON)
ENVIRONMENT = {
    **MPI_HERE,
    # Allow root and more processes than cores: two are harmless, and the MPI check warns of root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
MORE = {
    TORCHRUN: (
        "`torchrun --standalone --nproc-per-node 2 --no-python true` may show more; one process "
        "works without"
    ),
    HOROVODRUN: "`horovodrun --gloo -np 2 true` may show more; lsgd launch torchrun works without",
    MPIRUN: "`mpirun -np 2 true` may show more; lsgd launch horovodrun works without",
}


def all_reduces(
    torch: ProbeResult, horovod: ProbeResult, mpi: CheckItem, network: CheckItem, *, limit: float
) -> Iterator[CheckItem]:
    """Check an all-reduce of two processes with each communication library, one after another."""
    gpus = 0 if "problem" in torch.facts else len(torch.facts.get("gpus", []))
    built = horovod.facts.get("built", {})
    two = "" if gpus > 1 else "needs two GPUs"
    no_torch = "torch cannot be imported" if torch.failure_reason else ""
    no_horovod = no_torch or ("" if built else "Horovod cannot be imported")
    # ENVIRONMENT allows root to start these two processes.
    no_mpi = "" if mpi.status == PASS or "refuses root" in mpi.found else mpi.found
    for library, part, launcher, device, why_not in (
        ("torch", "gloo", TORCHRUN, "cpu", no_torch),
        ("torch", "NCCL", TORCHRUN, "cuda", no_torch or two),
        ("Horovod", "Gloo", HOROVODRUN, "cpu", no_horovod),
        ("Horovod", "MPI", MPIRUN, "cpu", no_horovod or no_mpi),
        ("Horovod", "NCCL", HOROVODRUN, "cuda", no_horovod or two),
    ):
        name = f"all-reduce {library} {part}"
        if built and library == "Horovod" and not built[part]:
            why_not = f"Horovod is not built with {part}"
        if why_not:
            yield CheckItem(name, ABSENT, why_not)
            continue
        answer = run_probe(
            "all_reduce", library.lower(), device,
            limit=limit, launcher=launcher, environment=ENVIRONMENT,
        )  # fmt: skip
        fix = "fix the network first, see above" if network.status == FAIL else MORE[launcher]
        yield all_reduce(name, answer, fix)


def all_reduce(name: str, answer: ProbeResult, fix: str) -> CheckItem:
    """Return the check result of an all-reduce: whether two processes met and the sum was right."""
    if answer.failure_reason:
        return CheckItem(name, FAIL, answer.failure_reason, fix)
    if answer.facts["processes"] != 2:
        return CheckItem(name, FAIL, f"{answer.facts['processes']} processes joined, not 2", fix)
    if wrong := answer.facts["wrong"]:
        return CheckItem(name, FAIL, f"the all-reduce result is wrong on process {wrong[0]}", fix)
    speed = answer.facts["mb_per_s"]
    return CheckItem(name, PASS, f"2 processes, {speed:,.0f} MB/s", numbers={"mb_per_s": speed})
