"""Local SGD and DiLoCo of lsgd beside those of torchft: five rounds of the same batches.

    OMP_NUM_THREADS=1 python results/2026-11-23-torchft/compare.py

The replicas of torchft are threads, each with a Manager, over a Lighthouse and Gloo. It has no BN
statistics of workers, so that the parameters are compared, and its mean has no weights, so that all
batches are of equal size.
"""

import logging
import platform
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version

import torch
from torch.distributed import TCPStore
from torch.nn import functional as F
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.tables import markdown_table

CPU, LIMIT = torch.device("cpu"), timedelta(seconds=60)
# 20 steps of 3 workers, in 5 rounds of 4; momentum and decay, which the workers keep.
WORDS = [
    "+recipe=digits", "workers=3", "worker_batch=8", "data.train_examples=480", "epochs=1",
    "schedule.warmup=none", "schedule.milestones=[]", "model.last_gamma=1.0", "inputs=synthetic",
    "device=cpu", "strategy=local", "strategy.local_steps=4", "workers_per_pass=1",
]  # fmt: skip
RULES = {
    "LocalSGD": [],
    "DiLoCo": [
        "strategy.outer=nesterov", "strategy.outer_lr=0.7", "strategy.outer_momentum=0.9",
    ],
}  # fmt: skip


def ours(made: Recipe) -> list[torch.Tensor]:
    """The parameters after lsgd's run."""
    learner = Learner(made, SingleComm(), CPU)
    inputs = learner.workload.inputs()
    for epoch, steps in made.epochs_from(0):
        for task in learner.strategy.tasks(epoch, steps):
            train_step(learner, task, inputs.train(task.micro_batches))
    learner.strategy.synchronize()
    return [parameter.detach() for parameter in learner.model.parameters()]


def theirs(made: Recipe, rule: str) -> list[list[torch.Tensor]]:
    """The parameters of each replica after torchft's run."""
    house = LighthouseServer(bind="[::]:0", min_replicas=made.workers)
    try:
        with ThreadPoolExecutor(made.workers) as pool:
            address, workers = house.address(), range(made.workers)
            runs = [pool.submit(replica, made, rule, worker, address) for worker in workers]
            return [run.result() for run in runs]
    finally:
        house.shutdown()


def replica(made: Recipe, rule: str, worker: int, house: str) -> list[torch.Tensor]:
    """The parameters that a replica has in the end, trained by a plain loop."""
    workload = Learner(made, SingleComm(), CPU).workload
    model, inputs, n = workload.network(), workload.inputs(), made.worker_batch
    parameters, norms = list(model.parameters()), worker_batch_norms(model)
    for norm in norms:  # which lsgd's running statistics would give it
        norm.seen = torch.zeros(2, norm.num_features, dtype=parameters[0].dtype)
    fixed = {id(p) for norm in norms for p in norm.parameters()}
    groups = [
        {"params": [p for p in parameters if id(p) not in fixed], "weight_decay": 1e-4},
        {"params": [p for p in parameters if id(p) in fixed], "weight_decay": 0.0},
    ]
    inner = torch.optim.SGD(groups, lr=made.lr(0), momentum=0.9, nesterov=True)
    outer = torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT), load_state_dict=lambda state: None, state_dict=dict,
        min_replica_size=made.workers, use_async_quorum=False, init_sync=False, rank=0,
        world_size=1, store_addr="localhost", store_port=store.port, lighthouse_addr=house,
        replica_id=f"replica-{worker}", timeout=LIMIT, quorum_timeout=LIMIT,
    )  # fmt: skip
    every = made.strategy.local_steps
    try:
        around = (
            LocalSGD(manager, model, inner, sync_every=every)
            if rule == "LocalSGD"
            else DiLoCo(manager, [model], inner, outer, sync_every=every)
        )
        with around:
            order = workload.example_order(0)
            for step in range(made.total_steps):
                begin = (step * made.workers + worker) * n
                each = MicroBatch(0, order[begin : begin + n], range(worker, worker + 1), step)
                [(images, labels)] = inputs.train([each])
                inner.zero_grad()
                images = images.to(parameters[0].dtype)
                F.cross_entropy(model(images), labels).backward()
                inner.step()
        assert manager.current_step() == made.total_steps // every, "a round was discarded"
        return [parameter.detach() for parameter in parameters]
    finally:
        manager.shutdown(wait=False)


def apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The greatest difference of any parameter."""
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Print the greatest differences."""
    logging.disable(logging.WARNING)
    rows = []
    for rule, words in RULES.items():
        for precision in ("float64", "float32"):
            made = config.load_recipe([*WORDS, *words, f"precision={precision}"])
            begin = list(Learner(made, SingleComm(), CPU).workload.network().parameters())
            mine, replicas = ours(made), theirs(made, rule)
            gap = max(apart(mine, each) for each in replicas)
            rounds = made.total_steps // made.strategy.local_steps
            rows.append([rule, precision, f"{rounds}", f"{gap:.1e}", f"{apart(mine, begin):.2g}"])
    head = ["torchft", "precision", "rounds", "greatest difference", "way from the start"]
    software = [f"{name} {version(name)}" for name in ("torch", "torchft", "lsgd")]
    print(
        f"Python {platform.python_version()}, {', '.join(software)}\n\n{markdown_table(head, rows)}"
    )


if __name__ == "__main__":
    main()
