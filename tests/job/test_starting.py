"""What is said before torch is imported, and how its threads are to wait."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from lsgd import paths

TORCH = """
import os, sys
print(*(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")))
sys.exit(0)
"""


def started(tmp_path: Path, *words: str, **environment: str) -> tuple[str, str]:
    """What a torch that only looks around sees, and what stands on the terminal before it."""
    (tmp_path / "torch.py").write_text(TORCH)
    path = f"{tmp_path}:{paths.conf_dir().parent}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    terminal, its_end = pty.openpty()
    done = subprocess.run(
        [sys.executable, *words],
        env=clean | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE, stderr=its_end, text=True, timeout=900,
    )  # fmt: skip
    os.write(its_end, b"END")
    said = b""
    while not said.endswith(b"END"):
        said += os.read(terminal, 1024)
    os.close(terminal)
    os.close(its_end)
    return done.stdout.strip(), said.decode().removesuffix("END").replace("\r", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "lsgd.train"], ["-m", "lsgd", "train"]])
def test_threads_sleep_soon_and_a_line_is_there_at_once(words: list[str], tmp_path: Path) -> None:
    words = [*words, "+recipe=digits"]
    threads, said = started(tmp_path, *words)
    assert threads in ("20000 1", "2000 0")  # by how busy this machine is
    assert said == "lsgd: loading torch\n"


@pytest.mark.slow
def test_how_threads_wait_is_the_users(tmp_path: Path) -> None:
    words = ["-m", "lsgd.train", "+recipe=digits"]
    assert started(tmp_path, *words, GOMP_SPINCOUNT="9")[0] == "9 None"
    assert started(tmp_path, *words, OMP_WAIT_POLICY="active")[0] == "None None"


@pytest.mark.slow
def test_a_program_that_imports_lsgd_is_left_alone(tmp_path: Path) -> None:
    assert started(tmp_path, "-c", "import lsgd.train") == ("None None", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment"),
    [(["--help"], {}), (["+recipe=digits"], {"RANK": "1", "WORLD_SIZE": "2"})],
)
def test_an_answer_stands_alone_and_one_process_speaks(
    words: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    job = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"} if environment else {}
    assert started(tmp_path, "-m", "lsgd.train", *words, **environment, **job)[1] == ""


@pytest.mark.slow
def test_a_wrong_variable_of_a_launcher_is_left_to_the_command(tmp_path: Path) -> None:
    """An import of torch is no place for its sentence, which would end in a traceback."""
    waits, said = started(tmp_path, "-m", "lsgd.train", SLURM_CPUS_ON_NODE="all")
    assert waits == "None None"
    assert "SLURM_CPUS_ON_NODE" not in said
