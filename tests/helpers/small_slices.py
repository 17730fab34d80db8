"""The command `benchmarks.gpu` with fake slices that do what a plan says.

    python small_slices.py WORDS…

The environment variable SMALL_SLICES is the plan, a JSON object of actions by slice name: `waits`
sleeps until it is killed; `saves` exits with code 75 on SIGTERM, as training does; `fails`;
`crashes`. A slice without an action writes a result and exits. With --limit the clock stands still
until a slice that waits or saves has started, so that a busy machine does not exceed the limit
before. The clock of the ladder counts the calls that read it.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

MACHINE = {"device": "cpu", "gpu": None, "torch": "2", "lines": ["a machine"]}


def work(name: str, report: Path) -> int:
    plan = json.loads(os.environ["SMALL_SLICES"]).get(name)
    if plan == "saves":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    report.mkdir()  # fails if an earlier start has left the folder
    print(f"begun {name}", flush=True)
    if plan in ("waits", "saves"):
        time.sleep(600)
    elif plan == "fails":
        print("out of luck", flush=True)
        return 3
    elif plan == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    (report / "result").write_text(name)
    return 0


def main(words: list[str]) -> int:
    import benchmarks.gpu.__main__ as gpu
    from benchmarks.gpu import attempt
    from benchmarks.gpu.slices import RESULT_PLACEHOLDER, Slice, SliceSettings, all_slices

    def small(sizes: SliceSettings) -> list[Slice]:
        return [
            replace(
                each,
                arguments=(__file__, "work", each.name, RESULT_PLACEHOLDER),
                missing_requirement="",
            )
            for each in all_slices(sizes)
        ]

    gpu.all_slices = small
    gpu.find_machine = lambda device: MACHINE
    gpu.PATIENCE = float(os.environ.get("SMALL_PATIENCE", gpu.PATIENCE))
    gpu.SliceRunner._report_ladder = lambda work: None  # type: ignore[method-assign]
    if "--limit" in words:
        plan, run, begun = json.loads(os.environ["SMALL_SLICES"]), attempt._run, [Path("/nothing")]

        def run_watched(each: Slice, folder: Path, *rest: object) -> tuple[int, bool]:
            begun[0] = folder / "report" if plan.get(each.name) in ("waits", "saves") else Path("")
            return run(each, folder, *rest)  # type: ignore[arg-type]

        hours, looks = count(3600, 3600), count()
        attempt._run = run_watched
        attempt.time = SimpleNamespace(  # type: ignore[assignment]
            sleep=time.sleep,
            monotonic=lambda: float(next(hours)) if begun[0].name and begun[0].exists() else 0.0,
        )
        gpu.time = SimpleNamespace(monotonic=lambda: float(next(looks)), sleep=time.sleep)
    return gpu.main(words)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        raise SystemExit(work(sys.argv[2], Path(sys.argv[3])))
    raise SystemExit(main(sys.argv[1:]))
