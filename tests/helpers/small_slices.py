"""`benchmarks.gpu` whose slices do nothing but what is planned: python small_slices.py WORDS…

SMALL_SLICES in the environment is a plan, JSON: by the name of a slice what it does. `waits` until
it is ended; `saves` when it is asked to end, as training does; `fails`; `crashes`; else it keeps a
result and ends.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

MACHINE = {"device": "cpu", "gpu": None, "torch": "2", "lines": ["a machine"]}


def work(name: str, report: Path) -> int:
    plan = json.loads(os.environ["SMALL_SLICES"]).get(name)
    if plan == "saves":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    report.mkdir()  # of which nothing may be left by an earlier start
    print(f"begun {name}", flush=True)
    if plan in ("waits", "saves"):
        time.sleep(30)
    elif plan == "fails":
        print("out of luck", flush=True)
        return 3
    elif plan == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    (report / "result").write_text(name)
    return 0


def main(words: list[str]) -> int:
    import benchmarks.gpu.__main__ as gpu
    from benchmarks.gpu.slices import KEPT, Sizes, Slice, all_slices

    def small(sizes: Sizes) -> list[Slice]:
        return [
            replace(each, words=(__file__, "work", each.name, KEPT), lacks="")
            for each in all_slices(sizes)
        ]

    gpu.all_slices = small
    gpu.find_machine = lambda device: MACHINE
    gpu.PATIENCE = float(os.environ.get("SMALL_PATIENCE", gpu.PATIENCE))
    gpu.Work._report_ladder = lambda work: None  # type: ignore[method-assign]
    return gpu.main(words)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        raise SystemExit(work(sys.argv[2], Path(sys.argv[3])))
    raise SystemExit(main(sys.argv[1:]))
