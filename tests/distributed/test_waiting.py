"""profile=true where processes wait for each other: the slow one is named, with the cause."""

import platform
from pathlib import Path

import pytest
from helpers.launching import launch

PLANTED = """
import os, sys, time
from pathlib import Path
import torch
from lsgd.recipe import CommSettings
from lsgd import config
from lsgd.comm import open_comm
from lsgd.inputs import open_inputs
from lsgd.learner import Learner
from lsgd.run.metrics import Log
from lsgd.profile import profiling
from lsgd.run.saver import CheckpointSaver
from lsgd.train import train_epochs

SECONDS = 0.1
out, device = Path(sys.argv[1]), torch.device("cpu")
comm = open_comm(CommSettings(library="torch", timeout=900), device)
made = config.load_recipe([
    "+recipe=digits", "workers=2", "worker_batch=24", "epochs=1", "profile=true",
    "schedule.milestones=[]", "schedule.warmup_epochs=1",
])

class SlowLoader:
    def __init__(self, inputs):
        self.evaluation, self.images = inputs.evaluation, inputs.train
    def train(self, passes):
        for batch in self.images(passes):
            time.sleep(SECONDS)
            yield batch

for case in ("loader", "forward"):
    inputs, learner, log = open_inputs(made, device), Learner(made, comm, device), Log()
    if case == "loader" and comm.rank == 1:
        inputs = SlowLoader(inputs)
    if case == "forward" and comm.rank == 0:
        learner.model.register_forward_pre_hook(lambda *_: time.sleep(SECONDS))
    folder = out / case
    folder.mkdir(exist_ok=True)
    saver = CheckpointSaver(folder, comm, log, keep=made.kept_checkpoints)
    with saver, profiling(learner, inputs, folder, log):
        train_epochs(learner, inputs, saver, log)
comm.close()
"""


@pytest.mark.distributed
@pytest.mark.slow
def test_who_is_slow_is_named_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    done = launch("forked", 2, str(tmp_path / "planted.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    for case, rank, cause in (("loader", 1, "data wait"), ("forward", 0, "forward")):
        (folder,) = (tmp_path / case / "profile").iterdir()
        readme = (folder / "README.md").read_text()
        named = f"Process {rank} on {platform.node()} makes the others wait, by its {cause}: "
        assert named in readme, readme
        assert {path.name for path in folder.iterdir()} == {
            "README.md", "trace-0.json.gz", "trace-1.json.gz",
        }  # fmt: skip
