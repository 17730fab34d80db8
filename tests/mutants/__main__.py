"""Draw small changes of lsgd's code at random, and check for each that a test fails.

    make mutants                                        # 300 of them, an hour or more on 2 cores
    make mutants ARGS='--only lsgd/rules --number 20 --tests tests/rules lsgd/rules'

The changes are those of mutmut (https://mutmut.readthedocs.io). All tests run once without changes,
to record which lines each test runs. Then each mutant, in a copy of the tree, gets the tests of its
line, cheapest first, until one fails. Rerun the same command to resume after a kill. The results go
into a folder: README.md, and mutants.jsonl with a line for each mutant.

A mutant is `killed` if a test fails, or none can be collected; `hung` if a test does not end;
`survived` if all of its tests pass; and `unreached` if no test runs its line in its own process.
"""

import argparse
import compileall
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import coverage

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)
from helpers.tree_copy import ROOT, copy_tree, pytest_in  # noqa: E402
from mutants.drawing import Mutant, draw, lines_of_statement  # noqa: E402
from mutants.reporting import report, score  # noqa: E402

MARKS = "not distributed and not slow and not soak"
LEFT_OUT = [
    # They compare with saved numbers or calls, so they notice any change, which says nothing of a
    # bug; or they run a tool over the tree, or a page's lines in other processes.
    *("tests/recipe/test_published.py", "tests/benchmarks", "tests/docs", "tests/distributed"),
    *("tests/suite", "tests/setup", "tests/accelerator/test_matrix.py"),
    "tests/recipe/test_recipes.py::test_published_recipes_are_frozen",
    "tests/models/test_models.py::test_networks_start_with_the_numbers_they_had",
]
FIRST = 12
"""The number of tests to try before all others, since a few tests kill most mutants."""
MOST = 60.0
"""The limit on the processor seconds of tests for one mutant; the cheapest are taken."""


class MutationState:
    """The state that is kept between two starts: drawn mutants, recorded lines and results."""

    def __init__(self, folder: Path, words: dict[str, Any]) -> None:
        self.folder = folder
        if not (kept := folder / "words.json").exists() or json.loads(kept.read_text()) != words:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            kept.write_text(json.dumps(words))
        self.earlier = sum(float(each.read_text() or 0) for each in folder.glob("seconds-*"))
        self.taken_file = folder / f"seconds-{os.getpid()}-{time.time_ns()}"
        whole = (folder / "found.jsonl").read_text().split("\n") if self.earlier else []
        # The last line is empty, or partial after a kill.
        self.found: list[dict[str, Any]] = [json.loads(line) for line in whole[:-1]]
        (folder / "found.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in self.found))

    def cpu_seconds(self) -> float:
        """Return the processor seconds of all starts so far, with those of finished tests."""
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        taken = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        self.taken_file.write_text(str(taken))
        return self.earlier + taken

    def note(self, found: dict[str, Any]) -> None:
        """Save the result of a mutant."""
        with (self.folder / "found.jsonl").open("a") as file:
            file.write(f"{json.dumps(found)}\n")
        self.found.append(found)

    def drawn(self, files: Sequence[str], number: int, seed: int, jobs: int) -> list[Mutant]:
        """Return the mutants, which are drawn at the first start."""
        if not (file := self.folder / "drawn.json").exists():
            mutants = draw(ROOT, files, number, seed, jobs)
            file.with_suffix(".tmp").write_text(json.dumps([asdict(each) for each in mutants]))
            file.with_suffix(".tmp").rename(file)
        return [Mutant(**each) for each in json.loads(file.read_text())]


class Copies:
    """Copies of the source tree, each lent to one thread at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        for i in range(number):
            copy_tree(copy := folder / f"copy{i}")
            copy.with_suffix(".tmp").mkdir()
            compileall.compile_dir(copy / "lsgd", quiet=2)
            self.free.put(copy)

    @contextmanager
    def lend(self) -> Iterator[Path]:
        """Lend a copy of the source tree within this context; the borrower must restore it."""
        copy = self.free.get()
        try:
            yield copy
        finally:
            self.free.put(copy)

    def run(self, copy: Path, words: Sequence[str], limit: float | None, **more: str) -> int | None:
        """Run pytest in a copy of the tree, with a folder for the temporary files of mutants."""
        words = ["-p", "mutants.plugin", *words]
        return pytest_in(copy, words, limit, TMPDIR=str(copy.with_suffix(".tmp")), **more)


class LineCoverage:
    """The tests that run each line, and their processor seconds."""

    def __init__(self, folder: Path) -> None:
        self.data = coverage.CoverageData(no_disk=True)
        self.seconds: dict[str, float] = {}
        self.users: dict[str, set[str]] = {}
        """The tests, and other shared set-ups, that use each shared set-up."""
        for file in sorted(folder.glob("part-*.json")):
            part = coverage.CoverageData(str(file.with_suffix("")))
            part.read()
            self.data.update(part)
            recorded = json.loads(file.read_text())
            self.seconds |= {k: v for k, v in recorded["seconds"].items() if v is not None}
            for user, used in recorded["uses"].items():
                for each in used:
                    self.users.setdefault(each, set()).add(user)

    def tests(self, mutant: Mutant, text: str) -> dict[str, float]:
        """Return the tests of a mutant's statement with their seconds, cheapest first.

        If the statement runs at import, all other tests of its file follow.
        """
        by_line = self.data.contexts_by_lineno(mutant.file)
        own = {each for i in lines_of_statement(text, mutant.line) for each in by_line.get(i, ())}
        others = {each for some in by_line.values() for each in some} if "" in own else set()
        own, others = self._with_users(own), self._with_users(others)
        ordered = self._known(own) + self._known(others - own)
        return {test: self.seconds[test] for test in ordered}

    def _with_users(self, contexts: set[str]) -> set[str]:
        found, left = set(contexts), list(contexts)
        while left:
            new = self.users.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    def _known(self, tests: set[str]) -> list[str]:
        return sorted(tests & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


def record(
    work: MutationState, tests: Sequence[str], marks: str, copies: Copies, jobs: int
) -> LineCoverage:
    """Run the tests in parts to record their lines; finished parts survive a kill."""

    def run(part: Sequence[str]) -> None:
        name = hashlib.sha256("\n".join(part).encode()).hexdigest()[:12]
        file = work.folder / f"part-{name}"
        if not file.with_suffix(".json").exists():
            left_out = [f"--{'deselect' if '::' in e else 'ignore'}={e}" for e in LEFT_OUT]
            words = ["-m", marks, *left_out, *part]
            more = {"MUTANTS_RECORD": str(file), "PYTHONDONTWRITEBYTECODE": ""}
            with copies.lend() as copy:
                code = copies.run(copy, words, None, **more)
            if code not in (0, 1, 5):  # all pass, some fail, or none is left
                file.with_suffix(".json").unlink(missing_ok=True)
                raise SystemExit(
                    f"pytest ends with {code} in {' '.join(part)}, so no line of these tests is "
                    f"known; run them by themselves, with -p mutants.plugin"
                )
        seconds = json.loads(file.with_suffix(".json").read_text())["seconds"]
        passed = sum(each is not None for each in seconds.values())
        print(
            f"{passed} of {len(seconds)} tests in {part[0]} pass, and their lines are known: "
            f"{_clock(work)}", flush=True,
        )  # fmt: skip

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, _parts(tests)))
    return LineCoverage(work.folder)


def _parts(tests: Sequence[str]) -> list[list[str]]:
    """Divide tests into parts: folders, and groups of single files.

    Files are grouped, since each start of pytest takes seconds.
    """
    parts, files = [], []
    for test in tests:
        if test != "tests":
            parts.append([test])
            continue
        for path in sorted((ROOT / test).iterdir()):
            name = path.relative_to(ROOT).as_posix()
            if name not in LEFT_OUT and path.name.startswith("test_"):
                files.append(name)
            elif name not in LEFT_OUT and path.is_dir() and [*path.glob("**/test_*.py")]:
                parts.append([name])
    return parts + [files[i : i + 8] for i in range(0, len(files), 8)]


def try_one(mutant: Mutant, covering: LineCoverage, copies: Copies) -> dict[str, Any]:
    """Try a mutant, and return its result."""
    begin = time.monotonic()
    found = {key: value for key, value in asdict(mutant).items() if key != "text"}
    found["package"] = mutant.package
    with copies.lend() as copy:
        path = copy / mutant.file
        whole, stat = path.read_text("utf-8"), path.stat()
        tests = covering.tests(mutant, whole)
        cheap, total = {}, 0.0
        for test, seconds in tests.items():
            if (total := total + seconds) <= MOST or not cheap:
                cheap[test] = seconds
        names = list(cheap)
        path.write_text(mutant.text, "utf-8")
        outcome, by = "survived" if names else "unreached", ""
        for some in filter(None, (names[:FIRST], names[FIRST:])):
            code, by = _tried({test: cheap[test] for test in some}, copy, copies)
            if code != 0:
                outcome = "hung" if code in (None, -signal.SIGPROF, -signal.SIGALRM) else "killed"
                break
        path.write_text(whole, "utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # its bytecode is valid again
    found |= {"outcome": outcome, "tests": len(cheap), "left_out": len(tests) - len(cheap)}
    found |= {"by": (by or "the import") if outcome in ("killed", "hung") else ""}
    return found | {"seconds": round(time.monotonic() - begin, 1)}


def _tried(tests: dict[str, float], copy: Path, copies: Copies) -> tuple[int | None, str]:
    """Run tests in a copy; return the exit code and the last test that started, if any."""
    file = copy.with_suffix(".json")
    file.write_text(json.dumps(tests))
    (last := file.with_suffix(".last")).unlink(missing_ok=True)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    # Each test has its own limits; this limit is for imports that hang.
    code = copies.run(copy, ["-x", *files], 1800, MUTANTS_TESTS=str(file))
    return code, last.read_text() if last.exists() else ""


def try_mutants(
    work: MutationState, mutants: list[Mutant], covering: LineCoverage, copies: Copies, most: float
) -> None:
    """Try the mutants without a result, print a line for each, and stop at the time limit.

    `most` is in processor seconds of all starts.
    """
    known = {(each["file"], each["diff"]) for each in work.found}
    left = [each for each in mutants if (each.file, each.diff) not in known]
    begin, tried, lock = time.monotonic(), 0, threading.Lock()

    def one(mutant: Mutant) -> None:
        nonlocal tried
        if work.cpu_seconds() > most:
            return
        found = try_one(mutant, covering, copies)
        with lock:
            work.note(found)
            tried += 1
            minutes = (time.monotonic() - begin) / tried * (len(left) - tried) / 60
            print(
                f"{found['outcome']:9}  {mutant.file}:{mutant.line}  {found['by']}  "
                f"({len(work.found)} of {len(mutants)}, {minutes:.0f} min left)", flush=True,
            )  # fmt: skip

    with ThreadPoolExecutor(copies.free.qsize()) as pool:
        list(pool.map(one, left))


def _clock(work: MutationState) -> str:
    return f"{work.cpu_seconds() / 60:.1f} processor minutes so far"


def main() -> int:
    """Run the command line and return the exit code, which is 0 even if mutants survive."""
    parser = argparse.ArgumentParser(
        prog="python tests/mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--number", type=int, default=300, help="of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=["lsgd"],
        metavar="PATH",
        help="mutants of these files or folders",
    )
    parser.add_argument(
        "--tests", nargs="+", default=["tests", "lsgd"], help="where tests are taken from"
    )
    parser.add_argument("--slow", action="store_true", help="with tests that are marked slow")
    parser.add_argument("--minutes", type=float, default=90, help="processor minutes (default: 90)")
    parser.add_argument("--jobs", type=int, default=cores, help="at once (default: one per core)")
    parser.add_argument("--work", type=Path, default=ROOT / ".mutants", help="kept between starts")
    today = f"{time.strftime('%Y-%m-%d')}-mutants"
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / today, help="the result's folder"
    )
    arguments = parser.parse_args()
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "lsgd").rglob("*.py"))]
    only = tuple(f"{each.rstrip('/')}/" for each in arguments.only)
    for each in only:
        if not any(f"{file}/".startswith(each) for file in files):
            parser.error(f"no file of lsgd/ is {each[:-1]!r} or in it")
    files = [file for file in files if f"{file}/".startswith(only)]
    words = {
        "asked": {key: getattr(arguments, key) for key in ("only", "number", "seed")},
        "tests": arguments.tests,
        "marks": MARKS.replace(" and not slow", "") if arguments.slow else MARKS,
        "tree": _hash_of_tree(),
    }
    work = MutationState(arguments.work.resolve(), words)
    mutants = work.drawn(files, arguments.number, arguments.seed, arguments.jobs)
    print(f"{len(mutants)} mutants, {len(work.found)} of them tried: {_clock(work)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="lsgd-mutants-") as folder:
        copies = Copies(Path(folder), arguments.jobs)
        covering = record(work, arguments.tests, words["marks"], copies, arguments.jobs)
        if not covering.seconds:
            raise SystemExit(
                f"no test of {' '.join(arguments.tests)} passes; run them by themselves"
            )
        _control(covering, copies)
        try_mutants(work, mutants, covering, copies, 60 * arguments.minutes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    page = report(work.found, len(mutants), words | _made(work))
    (arguments.out / "README.md").write_text(page)
    shutil.copy(work.folder / "found.jsonl", arguments.out / "mutants.jsonl")
    count = Counter(each["outcome"] for each in work.found)
    print(f"{dict(count)}, score {score(count)}: {arguments.out}/README.md")
    return 0


def _control(covering: LineCoverage, copies: Copies) -> None:
    """Check that the cheapest tests pass without a mutant, or every mutant would seem killed."""
    cheapest = sorted(covering.seconds, key=covering.seconds.__getitem__)[:FIRST]
    with copies.lend() as copy:
        code, last = _tried({test: covering.seconds[test] for test in cheapest}, copy, copies)
    if code != 0:
        raise SystemExit(
            f"without a mutant pytest ends with {code} at {last}, which has passed before"
        )


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _made(work: MutationState) -> dict[str, Any]:
    commit = _git("rev-parse", "--short=12", "HEAD") or "none"
    return {"left out": LEFT_OUT, "clock": _clock(work), "commit": commit}


def _hash_of_tree() -> str:
    """Return a hash of the tested code and the tests; the work restarts when it changes."""
    digest = hashlib.sha256()
    for name in _git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        ours = name.startswith(("lsgd/", "tests/", "conf/", "recipes/"))
        runner = name.startswith(("tests/mutants/", "tests/faults/", *LEFT_OUT))
        if ours and not runner and (ROOT / name).is_file():
            digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
