"""A job whose processes may come back."""

import subprocess
import sys

# Some look for a process that is back, and some find one, without a pause: so at any moment of the
# end one of them uses the store, and one connects to it.
PROGRAM = """
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace

import torch

from lsgd.comm import lives
from lsgd.job.launcher import Launch
from lsgd.supervise.singly import free_port

lives.time = SimpleNamespace(sleep=lambda seconds: None)
launch = Launch("torchrun", master_addr="127.0.0.1", master_port=free_port(), life=0)
comm = lives.LivingComm(launch, device=torch.device("cpu"), timeout=30, join_timeout=30)
comm.welcome(lambda: None)
comm.store.set("life/2", "1")

def find_again_and_again():
    while True:
        with suppress(RuntimeError):
            comm.wait_for_life(2, 0)

Thread(target=comm.wait_for_life, args=(1, 0), daemon=True).start()
for _ in range(4):
    Thread(target=find_again_and_again, daemon=True).start()
comm.close()
"""


def test_who_looks_for_others_does_not_abort_the_process_in_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
