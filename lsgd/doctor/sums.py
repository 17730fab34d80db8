"""Items on all-reduce: a sum over two processes, really started, with each installed library."""

import sys
from collections.abc import Iterator

from lsgd.doctor.child import Answer, ask
from lsgd.doctor.item import ABSENT, FAIL, PASS, Item

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HOROVODRUN = (PYTHON, "-m", "horovod.runner.launch", "--gloo", "-np", "2", PYTHON)
MPIRUN = ("mpirun", "-np", "2", PYTHON)
ENVIRONMENT = {
    # As root, and with more processes than cores: two do no harm, and the item MPI warns of root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
MORE = {
    TORCHRUN: "`torchrun --standalone --nproc-per-node 2 --no-python true` may show more; one "
    "process needs none of it",
    HOROVODRUN: "`horovodrun --gloo -np 2 true` may show more; lsgd launch torchrun does without",
    MPIRUN: "`mpirun -np 2 true` may show more; lsgd launch horovodrun does without",
}


def all_reduces(
    torch: Answer, horovod: Answer, mpi: Item, network: Item, *, limit: float
) -> Iterator[Item]:
    """One item per library, in turn, so that none slows another."""
    gpus = 0 if "problem" in torch.facts else len(torch.facts.get("gpus", []))
    built = horovod.facts.get("built", {})
    two = "" if gpus > 1 else "it takes two GPUs"
    no_torch = "torch does not load" if torch.why else ""
    no_horovod = no_torch or ("" if built else "there is no Horovod that loads")
    # ENVIRONMENT lets root start these two processes.
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
            yield Item(name, ABSENT, why_not)
            continue
        answer = ask(
            "all_reduce", library.lower(), device,
            limit=limit, launcher=launcher, environment=ENVIRONMENT,
        )  # fmt: skip
        fix = "mend the network first, see above" if network.status == FAIL else MORE[launcher]
        yield all_reduce(name, answer, fix)


def all_reduce(name: str, answer: Answer, fix: str) -> Item:
    """Whether two processes have met and their sum is right."""
    if answer.why:
        return Item(name, FAIL, answer.why, fix)
    if answer.facts["processes"] != 2:
        return Item(name, FAIL, f"{answer.facts['processes']} processes have met, not 2", fix)
    if wrong := answer.facts["wrong"]:
        return Item(name, FAIL, f"the sum is wrong on process {wrong[0]}", fix)
    speed = answer.facts["mb_per_s"]
    return Item(name, PASS, f"2 processes, {speed:,.0f} MB/s", numbers={"mb_per_s": speed})
