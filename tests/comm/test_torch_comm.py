"""What torch.distributed leaves behind."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from lsgd import train
words = "+recipe=digits epochs=1 schedule.milestones=[] schedule.warmup=none".split()
code = train.main([*words, f"run_dir={sys.argv[1]}"])
for thread in os.listdir("/proc/self/task"):
    print("thread:", open(f"/proc/self/task/{thread}/comm").read().strip(), flush=True)
sys.exit(code)
"""


@pytest.mark.distributed
def test_no_thread_of_gloo_outlives_the_job(tmp_path: Path) -> None:
    """One that frees a tensor while Python shuts down aborts the process, now and then."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    ended = subprocess.run(
        [*launch, "--nproc-per-node", "2", program, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "thread: python" in ended.stdout
    assert not re.findall("thread: .*gloo.*", ended.stdout)
