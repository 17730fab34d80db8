"""Whether pyproject.toml admits, or constraints.txt pins, a version with a published hole.

    .venv/bin/python tests/suite/advisories.py [--renew [PIP-AUDIT'S ARGUMENTS]]

`make check` compares both with advisories.toml and needs no network. `make audit` renews that file:
pip-audit asks about every oldest version that is admitted and every version that is pinned.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lsgd.errors import UsageError
from lsgd.job.command import run_alone

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("advisories.toml")
HEAD = """\
# Published advisories of what pyproject.toml names: the first version of each package that has the
# hole no more. Made by `make audit`. `accepted` is written by hand: why lsgd is not concerned.
"""


class Advisory(NamedTuple):
    """A hole in a package, by the name under which it was published."""

    package: str
    id: str
    fixed: str
    """The first version from which on no version has it; empty if there is none."""
    summary: str
    accepted: str = ""


def read_advisories() -> list[Advisory]:
    """Return what the pinned file has."""
    return [Advisory(**each) for each in tomllib.loads(FILE.read_text("utf-8"))["advisory"]]


def write_advisories(advisories: Sequence[Advisory]) -> None:
    """Write the pinned file, by package and name. A text of JSON is one of TOML as well."""
    tables = (
        "\n[[advisory]]\n"
        + "".join(
            f"{field} = {json.dumps(value, ensure_ascii=False)}\n"
            for field, value in advisory._asdict().items()
            if value or field == "fixed"
        )
        for advisory in sorted(set(advisories))
    )
    FILE.write_text(HEAD + "".join(tables), "utf-8")


def floors() -> dict[str, str]:
    """Return the oldest version of each package that pyproject.toml admits.

    Raises UsageError where a requirement has none.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        listed += extra
    oldest: dict[str, str] = {}
    for requirement in map(Requirement, listed):
        bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        if len(bounds) != 1:
            raise UsageError(f"pyproject.toml: {requirement} names no oldest version; write >=")
        name = canonicalize_name(requirement.name)
        oldest[name] = min(oldest.get(name, bounds[0]), bounds[0], key=Version)
    return oldest


def pins() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def too_old(file: str, versions: Mapping[str, str], advisories: Sequence[Advisory]) -> list[str]:
    """Return a sentence for each advisory that a version of this file still has."""
    return [
        f"{file}: {name} {versions[name]} is older than {advisory.fixed}, the first without "
        f"{advisory.id} ({advisory.summary})"
        for advisory in advisories
        for name in [canonicalize_name(advisory.package)]
        if advisory.fixed
        and not advisory.accepted
        and name in versions
        and Version(versions[name]) < Version(advisory.fixed)
    ]


def with_findings(known: Sequence[Advisory], audit: str) -> list[Advisory]:
    """Return what is known and what pip-audit found, which it prints as JSON.

    What is known under another name of the same advisory stays under that, with its summary and
    with what was written by hand.
    """
    advisories = {(advisory.package, advisory.id): advisory for advisory in known}
    for package in json.loads(audit)["dependencies"]:
        name = canonicalize_name(package["name"])
        for hole in package.get("vulns", []):
            names = [(name, each) for each in (hole["id"], *hole["aliases"])]
            key = next((each for each in names if each in advisories), names[0])
            new = Advisory(*key, fixed="", summary=" ".join(hole["description"].split())[:200])
            fixed = max(hole["fix_versions"], key=Version, default="")
            advisories[key] = advisories.get(key, new)._replace(fixed=fixed)
    return list(advisories.values())


def renewed(options: Sequence[str]) -> list[Advisory]:
    """Return what is known and what pip-audit finds; raises UsageError where it cannot ask."""
    advisories = read_advisories()
    for versions in (floors(), pins()):
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "requirements.txt"
            listed.write_text("".join(f"{name}=={of}\n" for name, of in versions.items()))
            words = ["--no-deps", "--disable-pip", "--progress-spinner=off", "-f", "json"]
            command = [sys.executable, "-m", "pip_audit", "-r", str(listed), *words, *options]
            done = subprocess.run(command, capture_output=True, text=True)
        if not done.stdout.startswith("{"):
            raise UsageError(f"pip-audit could not ask: {done.stderr.strip().splitlines()[-1]}")
        advisories = with_findings(advisories, done.stdout)
    return advisories


def main(argv: Sequence[str]) -> int:
    """Check the versions, after renewing the file if asked; returns the exit code."""
    if argv[:1] == ["--renew"]:
        write_advisories(renewed(argv[1:]))
    elif argv:
        raise UsageError(f"{argv[0]} is no option; the one is --renew")
    advisories = read_advisories()
    sentences = too_old("pyproject.toml", floors(), advisories)
    sentences += too_old("constraints.txt", pins(), advisories)
    sentences += [
        f"{each.package}: no version is without {each.id} ({each.summary}); write into accepted "
        "why lsgd is not concerned, or do without the package"
        for each in advisories
        if not (each.fixed or each.accepted)
    ]
    print("\n".join(sentences) or f"{len(advisories)} advisories: no version has one")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(run_alone(lambda: main(sys.argv[1:])))
