"""The whole command on a machine with faults that are really caused."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.broken_machine import broken_environment, doctor, remaining_processes
from helpers.pages import PAGES, first_missing_line
from helpers.pages import lines as page_commands

from lsgd.doctor import ABSENT, FAIL, PASS, CheckItem
from lsgd.doctor import __main__ as command

KEYS = {"name", "status", "found", "fix", "required", "numbers"}
# A clean machine without GPUs has these, in this order; programs rely on the names.
NAMES = [
    "Python", "torch", "torchvision", "recipes", "tensorboard", "run folder", "disk", "cores",
    "GPU driver", "CUDA", "GPUs", "NCCL", "Horovod", "setuptools", "MPI", "Slurm", "network",
    "NCCL network",
    "open files", "shared memory", "memory", "DALI, CPU",
    "LSGD_DATA", "data: cifar10", "data: conll2003",
    "data: digits", "data: fashion-mnist", "data: imagenet", "data: ptb", "data: sst",
    "data: tiny-imagenet",
    "all-reduce torch gloo",
    "all-reduce torch NCCL", "all-reduce Horovod Gloo", "all-reduce Horovod MPI",
    "all-reduce Horovod NCCL",
]  # fmt: skip


def shown_in_docs() -> tuple[str, ...]:
    """What a page shows of the output of this command, which the tests of pages do not run."""
    [found] = [each for page in PAGES for each in page_commands(page) if each.tested_elsewhere]
    return found.shown


@pytest.mark.slow
@pytest.mark.distributed
def test_faults_that_a_run_can_do_without_are_named_with_their_fix(tmp_path: Path) -> None:
    """Horovod crashes in its import, there is no mpirun, few files may be open, no data is there;
    torch's own sum is made all the same."""
    faults = broken_environment(tmp_path, horovod="import os; os.abort()")
    (tmp_path / "data").mkdir()
    faults |= {"LSGD_DATA": str(tmp_path / "data"), "PATH": str(tmp_path)}
    few_files = ["/bin/sh", "-c", 'ulimit -S -n 64; exec "$0" "$@"']
    done = doctor(tmp_path, "--json", "--limit=150", environment=faults, before=few_files)
    assert (done.returncode, done.stderr) == (0, "")
    assert remaining_processes(faults) == []
    report = json.loads(done.stdout)
    assert set(report) == {"lsgd", "host", "fit", "items"}
    assert report["fit"] is True
    assert all(set(item) == KEYS for item in report["items"])
    assert {item["status"] for item in report["items"]} == {PASS, FAIL, ABSENT}
    items = {item["name"]: CheckItem(**item) for item in report["items"]}
    assert [name for name in items if name not in ("DALI, GPU", "compiler", "apex")] == NAMES
    for name in ("Python", "torch", "torchvision", "recipes", "tensorboard", "run folder"):
        assert (items[name].status, items[name].required) == (PASS, True)

    horovod = items["Horovod"]
    assert (horovod.status, horovod.required) == (FAIL, False)
    assert horovod.found == "cannot be imported: it crashed with SIGABRT"
    assert "setup/horovod.sh builds it" in horovod.fix
    files = items["open files"]
    assert (files.status, files.numbers) == (FAIL, {"open_files": 64})
    assert "ulimit -n " in files.fix
    assert items["MPI"].found == "mpirun is not found"
    assert items["LSGD_DATA"].found == f"{tmp_path}/data has no dataset in it"
    assert f"lsgd.prepare imagenet {tmp_path}/data/imagenet" in items["data: imagenet"].fix
    assert items["data: digits"].found == "1,797 images, shipped with lsgd"
    summed = items["all-reduce torch gloo"]
    assert summed.status == PASS
    assert summed.numbers["mb_per_s"] > 0
    for name in ("Gloo", "MPI", "NCCL"):
        assert items[f"all-reduce Horovod {name}"].status == ABSENT
    printed = [*map(command.line, items.values()), command.verdict([*items.values()])]
    assert first_missing_line(shown_in_docs()[1:], "\n".join(printed)) is None


@pytest.mark.slow
def test_without_torch_and_a_place_to_write_no_run_is_possible(tmp_path: Path) -> None:
    """And Hydra, so that nothing which the doctor itself imports needs more than Python."""
    faults = broken_environment(tmp_path) | {"TEST_BLOCKED": "torch,hydra,numpy,horovod,nvidia"}
    (tmp_path / "runs").write_text("a file")
    done = doctor(tmp_path, environment=faults)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\033" not in done.stdout
    assert first_missing_line(shown_in_docs()[:1], done.stdout) is None
    lines = {line[6:29].strip(): line for line in done.stdout.splitlines()}
    assert lines["torch"].startswith("FAIL")
    assert lines["torch"].endswith("ModuleNotFoundError: No module named 'torch'")
    assert lines["recipes"].endswith("ModuleNotFoundError: No module named 'hydra'")
    assert lines["run folder"].endswith(f"{tmp_path}/runs cannot be written: Not a directory")
    assert lines["Horovod"].startswith("-     Horovod")
    assert lines["Horovod"].endswith("optional: not installed")
    assert lines["DALI, CPU"].endswith("optional: not installed")
    assert lines["all-reduce torch gloo"].endswith("not needed here: torch cannot be imported")
    assert "      -> change to a folder that you can write to, or write run_dir=FOLDER" in (
        done.stdout
    )
    assert done.stdout.splitlines()[-1] == (
        "No run is possible here until this is fixed: torch, torchvision, recipes, tensorboard, "
        "run folder."
    )


@pytest.mark.slow
def test_terminated_it_leaves_nothing_running(tmp_path: Path) -> None:
    """Also a process that ignores the polite signal."""
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(600)"
    faults = broken_environment(tmp_path, torch=f"import signal, time; {ignores}")
    with subprocess.Popen(
        [sys.executable, "-m", "lsgd.doctor"],
        cwd=tmp_path,
        env=os.environ | faults,
        stdout=subprocess.DEVNULL,
    ) as process:
        while not (tmp_path / "deaf").exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        assert process.wait(200) == 143
    assert remaining_processes(faults) == []


def test_only_what_every_run_needs_decides() -> None:
    fails = CheckItem("MPI", FAIL, "mpirun is not found", "apt")
    assert command.verdict([fails]).startswith("A run is possible here, but this fails: MPI;")
    required = CheckItem("torch", FAIL, "it crashed", "pip", required=True)
    assert command.verdict([fails, required]).endswith("is fixed: torch.")


def test_no_advice_stands_beside_what_is_not_needed() -> None:
    wanted = CheckItem("data: imagenet", ABSENT, "not at data/imagenet", "`make it` makes it ready")
    lines = command.line(wanted).splitlines()
    assert lines[0].endswith("  optional: not at data/imagenet")
    assert lines[1] == "      -> `make it` makes it ready"
    needless = CheckItem("GPUs", ABSENT, "no NVIDIA GPU is found")
    assert command.line(needless).endswith("  not needed here: no NVIDIA GPU is found")
