"""One process of a check of nodes, with figures and faults that do not depend on this machine.

    python checked_node.py -m lsgd.doctor.job_check …        as a launcher starts it

Every process is a node of its own, node0, node1, …, but under Slurm it has Slurm's name. All
figures are equal, except for the faults in $LSGD_FAULTS, by rank: a `slow` matrix product, a
`clock` that is ahead by 1000 s, and a slow all-reduce of the two ends of a `link`. A process that
is `absent` never joins; process 0 begins to wait for it when all others have joined.
"""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

from lsgd.doctor import job_check, probe
from lsgd.job.launcher import detect_launch

RANK = detect_launch().rank
FAULTS = json.loads(os.environ.get("LSGD_FAULTS", "{}"))
PATIENT = 900.0
"""The seconds that a busy machine may take to start all processes."""

group_speed, open_store = job_check.group_speed, job_check.open_store


class PatientMeeting(job_check.Meeting):
    """A meeting whose process 0 starts a limit when all but the absent process have answered."""

    def gather(self, name: str, value: object, limit: float) -> list[Any]:
        if self.rank == 0:
            present = {*range(1, self.world_size)} - {FAULTS.get("absent")}
            self.store.wait([f"{name}/{rank}" for rank in present], timedelta(seconds=PATIENT))
        return super().gather(name, value, limit)


def known_speed(store: Any, rank: int, size: int, device: Any) -> dict[str, Any]:
    """Make the all-reduce of this group, and return a known speed for it."""
    store.set(f"rank{rank}", str(RANK))
    ends = sorted(int(store.get(f"rank{each}")) for each in range(size))
    found = group_speed(store, rank, size, device)
    assert found["mb_per_s"] > 0
    return {"mb_per_s": 20.0 if ends == FAULTS.get("link") else 100.0}


job_check.Meeting = PatientMeeting  # type: ignore[misc]
job_check.group_speed = known_speed
job_check.open_store = lambda launch, timeout: open_store(launch, PATIENT)
job_check.matrix_rate = lambda device: (50.0 if FAULTS.get("slow") == RANK else 100.0, True)
job_check.clock = lambda: time.time() + 1000.0 * (FAULTS.get("clock") == RANK)
if "SLURMD_NODENAME" not in os.environ:
    job_check.expected_hosts = lambda launch, *_: [f"node{r}" for r in range(launch.world_size)]
job_check.MESSAGE_LIMIT = job_check.RING_LIMIT = PATIENT
probe.SUMMED_MB = 1

if __name__ == "__main__":
    module = sys.argv.index("lsgd.doctor.job_check")  # after -m, and under torchrun after -u
    raise SystemExit(job_check.main(sys.argv[module + 1 :]))
