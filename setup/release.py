"""Build a release into dist/ and try its sdist and its wheel in empty environments.

    .venv/bin/python setup/release.py [--untagged]

First it checks that all of the checkout is committed, that CITATION.cff has the version, that
CHANGELOG.md has a section for it, and that the commit has its tag. --untagged leaves out these last
two, to try a release. Nothing is uploaded: the last line names the command for that.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SHORT = ("epochs=1", "schedule.milestones=[]", "schedule.warmup=none", "run_dir=run")
TRIED = (
    ("lsgd", "--version"),
    ("lsgd", "check", "recipe=bs8k"),
    ("lsgd", "train", "recipe=digits", *SHORT),
    ("lsgd", "evaluate", "run"),
)
"""Commands that a release must run in an empty folder without a checkout."""


def version() -> str:
    """Return the version of the package, which is written in lsgd/__init__.py alone."""
    text = (ROOT / "lsgd/__init__.py").read_text("utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def git(*words: str) -> str:
    """Return what git prints about the checkout."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def obstacles(version: str, tagged: bool) -> list[str]:
    """Return a sentence for each reason why this checkout is no release of the version."""
    found = []
    if changed := git("status", "--porcelain"):
        first = changed.splitlines()[0][3:]
        found.append(f"{first} is not committed; commit or remove what 'git status' lists.")
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text("utf-8"):
        found.append(f"CITATION.cff has another version; write 'version: {version}'.")
    if not tagged:
        return found
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\]", changes, re.MULTILINE):
        found.append(
            f"CHANGELOG.md has no section '## [{version}]'; give the section of what is unreleased "
            f"that name, and the date."
        )
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        found.append(
            f"the commit does not have the tag v{version}, the version in lsgd/__init__.py; "
            f"'git tag v{version}' adds it."
        )
    return found


def run(command: Sequence[str | Path], folder: Path) -> None:
    """Run a command in the folder and show its output; Python is not configured by variables."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    print("$", *(each.name if isinstance(each, Path) else each for each in command), flush=True)
    subprocess.run(command, cwd=folder, env=kept, check=True)


def build(folder: Path) -> tuple[Path, Path]:
    """Build an sdist, and from it a wheel, so that a file missing in either shows; return both."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    run([*hatchling, "-t", "sdist"], ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder, filter="data")
    run([*hatchling, "-t", "wheel"], sdist.with_name(sdist.name.removesuffix(".tar.gz")))
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def try_out(artifact: Path) -> None:
    """Install an sdist or a wheel into an empty environment, and run commands of a user in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "venv", "venv"], folder)
        bin = folder / "venv/bin"
        pip: list[str | Path] = [
            bin / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        run([*pip, "-c", str(ROOT / "constraints.txt"), str(artifact)], folder)
        for program, *words in TRIED:
            run([bin / program, *words], folder)


def main(arguments: Sequence[str]) -> int:
    """Build, try and list a release; return the exit status."""
    if unknown := [each for each in arguments if each != "--untagged"]:
        print(f"lsgd: {unknown[0]} is no option of setup/release.py; --untagged is the only one.")
        return 2
    number = version()
    if reasons := obstacles(number, tagged="--untagged" not in arguments):
        for reason in reasons:
            print(f"lsgd: no release of {number}: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        sdist, wheel = build(Path(name))
        try:
            for artifact in (sdist, wheel):
                try_out(artifact)
        except subprocess.CalledProcessError as error:
            print(f"lsgd: {artifact.name} is not fit for release: {error}", file=sys.stderr)
            return 1
        DIST.mkdir(exist_ok=True)
        for artifact in (sdist, wheel):
            shutil.copy(artifact, DIST)
    print(f"{wheel.name} and {sdist.name} are in dist/; 'twine upload dist/*' publishes them.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
