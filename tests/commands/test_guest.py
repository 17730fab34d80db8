"""lsgd in other people's programs: what a whole process shares is as it was before each call.

Each host is a process of its own, which compares the globals of `helpers.process_state`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.launching import WITHOUT_COMPILER
from helpers.pages import REPOSITORY
from helpers.process_state import GLOBALS

CALLS = """
import io, logging, sys, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
import torch, numpy as np, random
import tensorboard.compat.proto.summary_pb2, absl.flags  # it adds a finder of modules
from helpers.process_state import changes, snapshot

torch.set_num_threads(2)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
snapshot()
before = snapshot()
seen = {}

def note(what):
    if found := changes(before):
        seen[what] = {name: str(values)[:2000] for name, values in found.items()}

def visit(folder, *, at_length=False):
    from lsgd import api
    note("import")
    words = ["+recipe=digits", "dry_run=true", "device=cpu"]
    with suppress(api.UsageError):
        api.load_recipe("+recipe=digits", "worker=3")
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda seed: api.load_recipe(*words, f"seed={seed}"), range(4)))
    assert [recipe.seed for recipe in loaded] == list(range(4))
    note("recipes loaded by threads")
    recipe = api.load_recipe(*words, f"run_dir={folder}/main")
    rows = []
    error = api.train(recipe, on_row=rows.append)
    note("train")
    assert rows[0]["kind"] == "start"
    api.evaluate(f"{folder}/main")
    note("evaluate")
    if not at_length:
        return
    assert api.train(recipe) == error
    note("train again")
    logging.getLogger("lsgd").setLevel(logging.ERROR)
    others = [api.load_recipe(*words, f"run_dir={folder}/{name}", "seed=1") for name in "ab"]
    with redirect_stdout(io.StringIO()) as printed, ThreadPoolExecutor(2) as pool:
        list(pool.map(api.train, others))
    logging.getLogger("lsgd").setLevel(logging.INFO)
    assert printed.getvalue() == ""
    note("train in two threads")
    def fail(row):
        raise RuntimeError("of the host")
    with suppress(RuntimeError):
        api.train(api.load_recipe(*words, f"run_dir={folder}/failed"), on_row=fail)
    note("train that fails")
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(api.read_runs, [folder] * 4))
    assert [len(each) for each in runs] == [4] * 4
    note("read_runs")
"""
HYDRA_APP = """
import hydra
from dataclasses import dataclass
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

@dataclass
class Host:
    data: str = "of the host"
    folder: str = "???"

ConfigStore.instance().store(name="config", node=Host)
import lsgd.api  # before the host's own Hydra starts

@hydra.main(config_path=None, config_name="config", version_base="1.2")
def main(host):
    global before
    assert host.data == "of the host"
    snapshot()
    before = snapshot()
    visit(host.folder, at_length=True)
    assert HydraConfig.get().job.name == "host"

main()
import json, pathlib
pathlib.Path("seen.json").write_text(json.dumps(seen))
"""
PYTEST = """
import json, pathlib
def test_host(tmp_path):
    global before
    snapshot()
    before = snapshot()
    visit(tmp_path)
    pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
"""


def changed(folder: Path, *command: str) -> dict[str, dict[str, str]]:
    """The globals that differ after the calls of a host, by the call and their name."""
    paths = [WITHOUT_COMPILER, str(REPOSITORY), str(REPOSITORY / "tests")]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())


def test_there_are_enough_globals() -> None:
    assert len(GLOBALS) >= 40


@pytest.mark.slow
def test_below_an_app_of_hydra(tmp_path: Path) -> None:
    """An app with a configuration of the name of lsgd's, and with Hydra of another version."""
    (tmp_path / "host.py").write_text(CALLS + HYDRA_APP)
    words = [f"folder={tmp_path}/runs", "hydra.run.dir=.", "hydra.output_subdir=null"]
    assert changed(tmp_path, "host.py", *words) == {}


@pytest.mark.slow
def test_in_the_tests_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "test_host.py").write_text(CALLS + PYTEST)
    assert changed(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_host.py") == {}


@pytest.mark.slow
@pytest.mark.docs
def test_in_a_kernel_of_a_notebook(tmp_path: Path) -> None:
    """Its kernel has signals, streams and an event loop of its own."""
    import nbformat

    end = "import json, pathlib; pathlib.Path('seen.json').write_text(json.dumps(seen))"
    cells = [CALLS, f"snapshot(); before = snapshot(); visit({str(tmp_path / 'runs')!r})", end]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    script = (
        "import sys, nbformat; from nbclient import NotebookClient; "
        "NotebookClient(nbformat.read('host.ipynb', 4), timeout=600).execute()"
    )
    nbformat.write(notebook, tmp_path / "host.ipynb")
    assert changed(tmp_path, "-c", script) == {}


def test_a_host_run_by_its_module_is_no_command_of_lsgd(tmp_path: Path) -> None:
    """`python -m host` imports the host's package, and so lsgd, while sys.argv[0] is still "-m"."""
    (package := tmp_path / "host").mkdir()
    (package / "__init__.py").write_text("import lsgd")
    (package / "__main__.py").write_text(
        "import gc, signal, sys\n"
        "print(gc.isenabled(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print([each for each in sys.meta_path if 'lsgd' in type(each).__module__])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "host", "--version"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("True True\n[]\n", "")
