"""lsgd.virtual over processes that a program connects itself, and in the loops of libraries."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers.launching import launch
from helpers.pages import REPOSITORY, lines
from helpers.threaded import seeded
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.virtual import virtual

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
STEPS = 4
RUN = """
import lsgd.vision, runpy
from lsgd.virtual import VirtualSampler

iterate = VirtualSampler.__iter__

def printing_order(sampler):
    steps = [*iterate(sampler)]
    print(f"order {{steps}}\\n", end="", flush=True)
    yield from steps

VirtualSampler.__iter__ = printing_order
runpy.run_path({!r}, run_name="__main__")
"""
"""A program that runs another one, and prints the order of each epoch of each process."""


@contextmanager
def connected(library: str) -> Iterator[tuple[int, int]]:
    """The rank and number of processes, which the program connects as any other does."""
    if library == "horovod":
        import horovod.torch as hvd

        hvd.init()
        net = nn.Linear(2, 2)
        wrapped = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters()), net.named_parameters()
        )
        with pytest.raises(UsageError, match="the optimizer SGD is wrapped in hvd"):
            virtual(net, wrapped, workers=2, worker_batch=2)
        yield hvd.rank(), hvd.size()
        hvd.shutdown()
    elif library == "torch":
        torch.distributed.init_process_group("gloo")
        yield torch.distributed.get_rank(), torch.distributed.get_world_size()
        torch.distributed.destroy_process_group()
    else:
        yield 0, 1


def trained(library: str) -> dict[str, Tensor]:
    """The model after some steps; only process 0 draws the initial weights of the others."""
    with connected(library) as (rank, processes):
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 5))
        model.double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = virtual(model, optimizer, workers=4, worker_batch=8, workers_per_pass=2)
        images = torch.randn(32, 1, 5, 5, generator=seeded(0)).double().chunk(processes)[rank]
        for _ in range(STEPS):
            step(images, (torch.arange(32) % 5).chunk(processes)[rank])
        step.synchronize()
        assert step.comm.world_size == processes
        return model.state_dict()


@pytest.mark.parametrize(
    ("launcher", "library"),
    [
        ("forked", "torch"),
        pytest.param("horovod-gloo", "horovod", marks=pytest.mark.horovod),
    ],
)
def test_the_processes_of_a_program(
    tmp_path: Path, launcher: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}")
    done = launch(launcher, 2, __file__, library, str(tmp_path))
    assert done.returncode == 0, done.stderr
    expected = trained("alone")
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(state, expected, rtol=0, atol=1e-10)


@pytest.mark.trainers
@pytest.mark.slow
@pytest.mark.parametrize(("name", "epochs"), [("lit.py", 2), ("hub.py", 1)])
def test_programs_of_the_page(tmp_path: Path, name: str, epochs: int) -> None:
    """A Trainer of Lightning, which sets the epochs; Accelerate with a model of Hugging Face."""
    page = REPOSITORY / "docs/how-to/virtual.md"
    [program] = [each.text for each in lines(page) if each.text.startswith(f"cat > {name}")]
    subprocess.run(["bash", "-c", program], cwd=tmp_path, check=True)
    # torchmetrics imports torchvision, beside which torch may be a CPU build.
    (tmp_path / "run.py").write_text(RUN.format(name))
    losses = []
    for processes in ("1", "2"):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", processes, "run.py"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed = done.stdout.splitlines()
        losses += [line for line in printed if "steps: loss" in line]
        orders = [line for line in printed if line.startswith("order")]
        assert len(set(orders)) == len(orders) == int(processes) * epochs
    assert len(losses) == 2
    assert losses[0] == losses[1]


if __name__ == "__main__":
    state = trained(sys.argv[1])
    rank = os.environ.get("RANK", os.environ.get("HOROVOD_RANK"))
    torch.save(state, f"{sys.argv[2]}/{rank}.pt")
