"""What can be proved of the images without building them: they name what the checkout has."""

import os
import re
import shutil
import subprocess
import tomllib
from functools import cached_property
from pathlib import Path

import pytest
import yaml

import lsgd
from lsgd.launch.k8s import KINDS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "setup/containers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FORCED = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]


class Image:
    """A Dockerfile as instructions, such as ("COPY", "lsgd lsgd")."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def instructions(self) -> list[tuple[str, str]]:
        lines = [line for line in self.path.read_text().splitlines() if line[:1] not in ("#", "")]
        text = re.sub(r"\\\n\s*", "", "\n".join(lines))
        return [(line.partition(" ")[0], line.partition(" ")[2]) for line in text.splitlines()]

    def of(self, kind: str) -> list[str]:
        return [words for each, words in self.instructions if each == kind]

    @property
    def copied(self) -> list[str]:
        """What is copied out of the checkout."""
        copies = [words.split() for words in self.of("COPY") if not words.startswith("--from")]
        return [source for *sources, _ in copies for source in sources]

    @property
    def last_stage(self) -> list[tuple[str, str]]:
        begins = [i for i, (kind, _) in enumerate(self.instructions) if kind == "FROM"]
        return self.instructions[begins[-1] :]


@pytest.fixture(params=sorted(FOLDER.glob("*.Dockerfile")), ids=lambda path: path.stem)
def image(request: pytest.FixtureRequest) -> Image:
    return Image(request.param)


def sent_by_docker(path: str) -> bool:
    """Whether .dockerignore, which shuts out all but some, lets this path through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    allowed = [line[1:] for line in lines if line.startswith("!")]
    return any(Path(path).is_relative_to(each) for each in allowed)


def test_what_is_copied_is_there_and_is_sent(image: Image) -> None:
    assert len(image.copied) > 10
    for source in image.copied:
        assert (ROOT / source).exists(), source
        assert sent_by_docker(source), source


def test_the_wheel_has_all_that_it_is_made_of(image: Image) -> None:
    """First an empty one, for which hatchling wants the same folders, then lsgd itself."""
    needed = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    needed.add("hatch_build.py")  # whose hook pyproject.toml asks for
    assert needed | FORCED.keys() | {"lsgd"} <= {*image.copied}
    assert PROJECT["tool"]["hatch"]["version"]["path"] in image.copied
    [first] = [words for words in image.of("RUN") if "python -m venv" in words]
    [made] = re.findall(r"mkdir -p (.*?) *&&", first)
    assert {*made.split()} == FORCED.keys()


def test_scripts_that_are_run_are_copied_with_what_they_read(image: Image) -> None:
    run = {each for words in image.of("RUN") for each in re.findall(r"setup/\w+\.sh", words)}
    assert "setup/horovod.sh" in run
    for script in run:
        assert os.access(ROOT / script, os.X_OK)
        needed, found = {script}, set[str]()
        while needed > found:
            found = needed
            text = "".join((ROOT / each).read_text() for each in found)
            needed = found | {f"setup/{each}" for each in re.findall(r"\$here/(\w[\w.]*)", text)}
            imported = re.findall(r"^from (lsgd\.[\w.]+) import", text, re.MULTILINE)
            needed |= {f"{each.replace('.', '/')}.py" for each in imported}
        assert needed <= {*image.copied}


def test_a_container_runs_lsgd_and_nobody_is_root(image: Image) -> None:
    last = dict(image.last_stage)
    assert last["USER"].isdigit()
    assert last["USER"] != "0"
    assert f"--uid {last['USER']} " in last["RUN"]


def test_an_image_runs_commands_of_lsgd_and_the_shell_of_a_job(
    image: Image, tmp_path: Path
) -> None:
    """pyxis starts a job as sh -c …, on some sites by the entrypoint of the image."""
    program = tmp_path / "lsgd"
    program.write_text('#!/bin/sh\necho lsgd "$@"\n')
    program.chmod(0o755)
    assert program.name in PROJECT["project"]["scripts"]
    entry = yaml.safe_load(dict(image.last_stage)["ENTRYPOINT"])
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for words, said in (
        (["sh", "-c", "echo a job"], "a job"),
        (["train", "recipe=a b"], "lsgd train recipe=a b"),
        ([], "lsgd"),
    ):
        done = subprocess.run(
            [*entry, *words], env=path, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == f"{said}\n"


def test_a_login_shell_finds_lsgd(image: Image, tmp_path: Path) -> None:
    """Enroot and pyxis start one, whose /etc/profile sets PATH anew and then reads this file."""
    last = dict(image.last_stage)
    [(command, file)] = re.findall(r"(echo .*?) > (/etc/profile\.d/\w+\.sh)$", last["RUN"])
    profile = tmp_path / Path(file).name
    script = f'{command} > "{profile}"; PATH=/usr/bin; . "{profile}"; echo "$PATH"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    venv = last["COPY"].split()[-1]
    assert done.stdout == f"{venv}/bin:/usr/bin\n"
    assert f"PATH={venv}/bin:" in last["ENV"]


def test_a_manifest_finds_in_it_what_it_names() -> None:
    """Its mount hides nothing of the image, its data is there, and mpirun is installed."""
    last = dict(Image(FOLDER / "cuda.Dockerfile").last_stage)
    for name in KINDS:
        text = (ROOT / f"lsgd/launch/{name}.yaml").read_text()
        [(mount, data)] = {
            *zip(
                re.findall(r"workingDir: (\S+)", text),
                re.findall(r"LSGD_DATA, value: (\S+)}", text),
                strict=False,
            )
        }
        assert last["WORKDIR"] == mount
        assert f" LSGD_DATA={data} " in f"{last['ENV']} "
        assert not any(words.split()[-1].startswith(f"{mount}/") for words in [last["COPY"]])
    assert "openmpi-bin" in last["RUN"].split()


def test_horovods_build_has_a_whole_toolkit() -> None:
    """The parts that torch does not bring are installed beside it, and removed again."""
    [build] = [run for run in Image(FOLDER / "cuda.Dockerfile").of("RUN") if "LSGD_REQUIRE" in run]
    [extras] = re.findall(r"cuda-toolkit\[(.*?)\]==\$cuda\.\*", build)
    script = (ROOT / "setup/cuda.sh").read_text()
    needed = {*re.findall(r"^    \S+=(\w+)$", script, re.MULTILINE)}
    assert {*extras.split(",")} == needed - {"cudart", "cublas", "cusolver", "cusparse"}
    [removed] = re.findall(r"pip uninstall -y (.*)", build)
    assert len(removed.split()) == len(extras.split(","))


def test_an_image_is_named_by_the_version_of_lsgd(tmp_path: Path) -> None:
    """Whatever builds it, and so are the definitions that are made of it."""
    engine = tmp_path / "podman"
    engine.write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
    engine.chmod(0o755)
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")

    def build(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FOLDER / "build.sh", *words],
            env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = build("cpu", "registry.example/", "--squash")
    name = f"registry.example/lsgd:{lsgd.__version__}-cpu"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == name
    assert f"build\n-f\nsetup/containers/cpu.Dockerfile\n-t\n{name}\n" in done.stdout
    assert "--squash" in done.stdout
    assert f"-t\nlsgd:{lsgd.__version__}-cpu\n" in build("cpu", "", "--no-cache").stdout
    refused = build("cpu", "--no-cache")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--no-cache, must be a registry" in refused.stderr
    assert build("gpu").returncode == 2
    engine.unlink()
    assert "no docker, podman or buildah" in build("cpu").stderr
    text = (FOLDER / "lsgd.def").read_text() + (FOLDER / "enroot.conf").read_text()
    versions = re.findall(r"lsgd[:-](\d[\d.]*\d)|Version (\S+)", text)
    assert len(versions) > 5
    assert {first or second for first, second in versions} == {lsgd.__version__}


def test_enroot_mounts_a_folder_with_a_space() -> None:
    """As an fstab has it, whose fields end at spaces."""
    done = subprocess.run(
        ["bash", "-c", f'source "{FOLDER}/enroot.conf"; mounts'],
        env={"DATA": "/my big data", "RUNS": "/runs"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    data, runs = (line.split() for line in done.stdout.splitlines())
    assert data[:3] == ["/my\\040big\\040data", "/lsgd/data", "none"]
    assert runs[:3] == ["/runs", "/lsgd/runs", "none"]
