"""Run a new user's commands on bare Debian machines, and print a table of the outcomes.

    make fresh                                     # every case, hours, as root
    python3 tests/fresh -k pip --out fresh.md      # some, and the table into a file as well
    tail -f ~/.cache/lsgd/fresh/logs/pip/1.log     # follow what a running command prints

tests/fresh/README.md lists the requirements.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# This replaces tests/fresh itself, which Python has put there.
sys.path[:1] = [str(REPOSITORY / "tests"), str(REPOSITORY)]

from fresh.cases import CASES, Case  # noqa: E402
from fresh.judge import AS_EXPECTED, run_on_terminal  # noqa: E402
from fresh.root import (  # noqa: E402
    PYENV_INSIDE,
    STRANGER,
    DebianSystem,
    debian,
    home,
    mirror,
    passed_environment,
    size,
)
from lsgd.tables import markdown_table  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lsgd/fresh"
HEAD = (
    *("case", "command", "s", "s to first line", "longest silence, s"),
    *("GB downloaded", "GB written", "outcome"),
)


def pyenv_python(version: str) -> Path | None:
    """Return the folder of the newest Python of this version that pyenv has built, if any."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(versions.glob(f"{version}.*"), key=lambda each: int(each.suffix[1:]))
    return found[-1] if found else None


def prepare(case: Case, archive: str) -> DebianSystem:
    """Return the machine of a case, with a checkout of HEAD and an empty account of its user."""
    below = debian(CACHE / "roots", case.debian, case.packages, archive)
    downloads = CACHE / "pip"
    downloads.mkdir(exist_ok=True)
    binds = [(downloads, f"{home(case.user)}/.cache/pip")]
    if case.pyenv:
        python = pyenv_python(case.pyenv)
        assert python is not None
        binds.append((python, PYENV_INSIDE))
    root = DebianSystem(below, CACHE / "cases" / case.name, tuple(binds))
    root.create()
    account = root.upper / home(case.user)[1:]
    (account / ".cache/pip").mkdir(parents=True)
    # The files of the clone get another owner, so hard links would change the original.
    clone = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--no-hardlinks"]
    subprocess.run([*clone, str(REPOSITORY), str(account / case.folder)], check=True)
    owner = "0:0" if case.user == "root" else f"{STRANGER}:{STRANGER}"
    subprocess.run(["chown", "-R", owner, account, downloads], check=True)
    return root


def rows(case: Case, root: DebianSystem) -> Iterator[list[str]]:
    """Yield a row of the table for each command of a case as soon as it has ended."""
    logs = CACHE / "logs" / case.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    environment = passed_environment(os.environ, case)
    checkout = f"{home(case.user)}/{case.folder}"
    for number, command in enumerate(case.commands, 1):
        before = size(root.upper)
        # A case may delete its checkout.
        shell = ["bash", "-c", 'cd "$1" 2>/dev/null || cd; eval "$2"', "bash", checkout]
        outcome = run_on_terminal(
            root.command(*shell, command.line, user=case.user, environment=environment),
            logs / f"{number}.log",
            command.limit,
        )
        seconds = (outcome.seconds, outcome.first, outcome.silence)
        sizes = (outcome.downloaded, size(root.upper) - before)
        yield [
            *(case.name, " ".join(command.line.split())),
            *(f"{each:.0f}" for each in seconds),
            *(f"{each / 1e9:.1f}" for each in sizes),
            outcome.verdict(command.expects, command.code),
        ]


def parsed() -> argparse.Namespace:
    """Parse the command line; exit with a message if this machine lacks a requirement."""
    parser = argparse.ArgumentParser(
        prog="python3 tests/fresh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-k", metavar="PART", default="", help="the case of this name, or all with it in theirs"
    )
    parser.add_argument("--list", action="store_true", help="print the cases and their commands")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--keep", action="store_true", help="keep what each case has written")
    parser.add_argument("--mirror", metavar="URL", help="Debian's archive (default: that of apt)")
    parser.add_argument("--cpu-index", metavar="URL", help="set CPU_INDEX for make CPU=yes")
    arguments = parser.parse_args()
    exact = [each for each in CASES if arguments.k == each.name]
    arguments.cases = exact or [each for each in CASES if arguments.k in each.name]
    if not arguments.cases:
        parser.error(f"-k {arguments.k} must be part of the name of a case; --list prints them")
    if arguments.list:
        return arguments
    if os.geteuid() != 0:
        parser.error("the user must be root, to mount and to change users; write sudo before it")
    for tool in ("debootstrap", "unshare", "git"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} must be installed; apt install debootstrap util-linux git")
    if arguments.mirror is None:
        folder = Path("/etc/apt")
        files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
        arguments.mirror = mirror("\n".join(f.read_text("utf-8") for f in files if f.is_file()))
    if not arguments.mirror:
        parser.error("apt's sources must name an archive of Debian; give one by --mirror URL")
    return arguments


def main() -> int:
    """Run the cases one after the other; return the exit code, 1 if any outcome is unexpected."""
    arguments = parsed()
    if arguments.list:
        for case in arguments.cases:
            print(f"{case.name} ({case.debian}, {case.user}, {', '.join(case.packages)})")
            print(*(f"    {command.line}" for command in case.commands), sep="\n")
        return 0
    table: list[list[str]] = []
    for case in arguments.cases:
        if case.pyenv and pyenv_python(case.pyenv) is None:
            table.append([case.name, *6 * ["–"], f"skipped: pyenv has no Python {case.pyenv}"])
            continue
        if arguments.cpu_index:
            extended = {**case.environment, "CPU_INDEX": arguments.cpu_index}
            case = replace(case, environment=extended)
        root = prepare(case, arguments.mirror)
        try:
            for row in rows(case, root):
                print(f"{row[0]}: {row[1]}: {row[-1]} ({row[2]} s)", flush=True)
                table.append(row)
                if arguments.out:  # a run takes hours, so the file has the rows so far
                    arguments.out.write_text(markdown_table(HEAD, table) + "\n", "utf-8")
        finally:
            if not arguments.keep:
                root.delete()
    print(markdown_table(HEAD, table))
    return int(any(row[-1] != AS_EXPECTED for row in table))


if __name__ == "__main__":
    sys.exit(main())
