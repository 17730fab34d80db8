"""What benchmarks.process_measurement sees of a process, and that none of it stays."""

import sys
from pathlib import Path

import pytest

from benchmarks import process_measurement
from benchmarks.process_measurement import WARMUP_STEPS, TrainingCommand, measure_training
from benchmarks.usage import Usage, parse_stat, usage
from lsgd.errors import UsageError
from lsgd.job.children import OURS
from lsgd.job.system import tagged_pids

FIRST, LATER, STEPS = 8000, 300, 4
"""Pages that a step touches before those that count and then, and the steps that count."""
TRAINS = f"""
import mmap, subprocess, sys, time

def touch(pages):
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(pages):
        memory[page * mmap.PAGESIZE] = 1
    memory.close()

def looked():
    while len(open(sys.argv[1]).read()) == 0:
        time.sleep(0.01)

burns = "import sys, time; sys.stdin.read(1)\\nwhile time.process_time() < 0.5: pass\\n"
burns += "print(flush=True); sys.stdin.read()"
pipe = subprocess.PIPE
loader = subprocess.Popen([sys.executable, "-c", burns], stdin=pipe, stdout=pipe)
print("Loading 1 of 2 done", flush=True)
for step in range({WARMUP_STEPS + STEPS}):
    touch({FIRST} if step < {WARMUP_STEPS} else {LATER})
    if step == {WARMUP_STEPS}:
        loader.stdin.write(b"x")
        loader.stdin.flush()
        loader.stdout.read(1)
    print("step", step, "done", file=sys.stderr, flush=True)
    if step == {WARMUP_STEPS - 1}:
        looked()
time.sleep(600)
"""


def python(program: str, *words: str) -> TrainingCommand:
    return TrainingCommand([sys.executable, "-c", program, *words], r"step \d+ done")


def test_what_is_between_two_lines_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process goes on when its first steps were looked at, and after the last it waits."""
    (seen := tmp_path / "seen").touch()
    lines = 0

    def look(pid: int) -> Usage:
        used = usage(pid)
        if lines == WARMUP_STEPS:
            seen.write_text("x")
        return used

    def counted(*args: object) -> object:
        nonlocal lines
        for line in step_lines(*args):  # type: ignore[arg-type]
            lines += 1
            yield line

    step_lines = process_measurement._step_lines
    monkeypatch.setattr(process_measurement, "_step_lines", counted)
    monkeypatch.setattr(process_measurement, "usage", look)
    found = measure_training(python(TRAINS, str(seen)), STEPS, limit=60)
    assert lines == WARMUP_STEPS + STEPS
    assert LATER <= found["page_faults_per_step"] < 2 * LATER
    # The pages of the first steps were there at once, though none of them is there any more.
    assert FIRST * 4096 < found["peak_bytes"] < found["bytes_with_loaders"]
    # The loader took its half second, less what its start took, while the process slept.
    assert STEPS * found["cpu_seconds_with_loaders"] > 0.2
    assert found["cpu_seconds_per_step"] < 0.5 * found["cpu_seconds_with_loaders"]
    rounding = 1e-12  # where all of it was the system's
    assert found["system_seconds_per_step"] <= found["cpu_seconds_per_step"] + rounding
    assert found["first_step_seconds"] > 0
    assert found["seconds_per_step"] > 0
    assert not tagged_pids(OURS)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import a_module_that_is_not", "after 0 steps: .*No module named 'a_module_that_is_not'"),
        ("print('step 1 done'); print(); raise SystemExit('lost')", "after 1 steps: lost"),
        ("print('step 1 done', end='')", "after 1 steps: step 1 done"),
        ("import os, signal; os.kill(os.getpid(), 11)", "after 0 steps: it crashed with SIGSEGV"),
        ("raise SystemExit(7)", "after 0 steps: it exited with code 7 without a message"),
        (
            "print('step 1 done\\nwaits for'); import time; time.sleep(600)",
            "longer than 10 s for step 2, and said last: waits for",
        ),
    ],
)
def test_what_fails_is_named_by_its_last_line(program: str, why: str) -> None:
    limit = 10 if "sleep" in program else 200
    with pytest.raises(UsageError, match=why):
        measure_training(python(program), 1, limit=limit)
    assert not tagged_pids(OURS)


def test_the_environment_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the training, and no output waits in a buffer."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    says = "import os; print(os.environ['A_VARIABLE'], 'done'); os._exit(3)"
    training = TrainingCommand([sys.executable, "-c", says], "x done", {"A_VARIABLE": "x"})
    with pytest.raises(UsageError, match="after 1 steps: x done"):
        measure_training(training, 1, limit=200)


def test_the_name_of_a_program_may_look_like_numbers() -> None:
    stat = "12 (a) 1 (2 3) R " + " ".join(map(str, range(4, 53)))
    ticks = 1 / 100
    assert parse_stat(stat).page_faults == 10
    assert parse_stat(stat).cpu_seconds == pytest.approx((14 + 15) * ticks)
    assert parse_stat(stat).system_seconds == pytest.approx(15 * ticks)
