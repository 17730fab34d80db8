"""A recipe that makes no sense is refused in one sentence, and one at the edge is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.base_recipe import BASE, changed
from hypothesis import assume, given
from hypothesis import strategies as st

from lsgd.errors import Refused
from lsgd.recipe import Target
from lsgd.recipe.checks import check, check_known, check_world_size
from lsgd.rules import sampler
from lsgd.strategy.tasks import hosted_workers

ADAM = {"optim__name": "adam", "optim__nesterov": False}
ADAGRAD = {"optim__name": "adagrad", "optim__nesterov": False, "optim__momentum": 0.0}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"workers": 0}, "workers=0 is not possible; write 1 or more"),
        ({"worker_batch": 1}, "worker_batch=1 is not possible; write 2 or more"),
        ({"seed": 2**64}, f"seed={2**64} is too large; write .* below 2.64"),
        ({"inputs__decoders": -1}, "inputs.decoders=-1 is not possible; write 0 or more"),
        ({"inputs__hardware_share": 1.5}, "share=1.5 is more than all .* a number from 0 to 1"),
        ({"tail": "pad"}, "tail=pad is unknown; write one of drop, keep"),
        ({"optim__equation": 8}, "optim.equation=8 is unknown; write one of 9, 10"),
        ({"model__name": "resnet18"}, "model.name=resnet18 .* resnet50, resnet101, resnet20"),
        ({"optim__momentum_correction": True}, "momentum_correction=true .* optim.equation=10"),
        ({"optim__momentum": 1.0}, "optim.momentum=1 .* below 1"),
        ({"optim__momentum": 0.0}, "optim.momentum=0 .* write optim.nesterov=false"),
        ({"optim__name": "adamw"}, "optim.name=adamw is unknown; write one of sgd, adam, adagrad"),
        ({"optim__name": "adam"}, "nesterov=true .* optim.name=adam; write optim.nesterov=false"),
        (ADAM | {"optim__equation": 10}, "equation=10 .*name=adam; write optim.equation=9"),
        (
            ADAM | {"optim__momentum_correction": True},
            "momentum_correction=true .*name=adam; write .*=false",
        ),
        (ADAGRAD | {"optim__momentum": 0.9}, "momentum=0.9 .*=adagrad; write optim.momentum=0"),
        (ADAGRAD | {"optim__beta2": 0.9}, "beta2=0.9 .*=adagrad; write optim.beta2=0.999"),
        ({"optim__beta2": 0.9}, "optim.beta2=0.9 .* optim.name=sgd; write optim.beta2=0.999"),
        ({"optim__eps": 1e-6}, "optim.eps=1e-06 .* optim.name=sgd; write optim.eps=1e-08"),
        (ADAM | {"optim__beta2": 1.0}, "optim.beta2=1 keeps .* below 1"),
        ({"optim__clip_norm": 0.0}, "optim.clip_norm=0 is not possible; write a number above 0"),
        ({"optim__clip_norm": 5.0, "optim__equation": 10}, "clip_norm=5 .* optim.equation=9"),
        ({"schedule__reference_lr": 0.0}, "schedule.reference_lr=0 .* above 0"),
        ({"schedule__reference_lr": float("nan")}, "schedule.reference_lr=nan .* above 0"),
        ({"schedule__reference_batch": 0.0}, "schedule.reference_batch=0 .* above 0"),
        ({"comm__timeout": float("inf")}, "comm.timeout=inf .* above 0"),
        ({"schedule__milestones": [30.0, 90.0]}, r"=\[30,90\] has 90.* 90 epochs; .* more epochs"),
        ({"schedule__milestones": [0.0]}, r"=\[0\] has 0.* between 0 and 90"),
        ({"schedule__milestones": [60.0, 30.0]}, r"=\[60,30\] does not rise; write .* in order"),
        ({"schedule__milestones": [30.0, 30.0]}, r"=\[30,30\] does not rise; write each once"),
        ({"schedule__warmup_epochs": 31.0}, "=31 does not end by epoch 30.* up to 30, or .*=none"),
        ({"schedule__warmup_epochs": 0.0}, "=0 does not end .* schedule.warmup=none"),
        ({"workers": 40037}, "1281184 .*1281167 training examples; write workers=40036 or fewer"),
        ({"worker_batch": 2000000}, "write worker_batch=1281167 or less"),
        (
            {
                "strategy__name": "backup",
                "strategy__backup": 4,
                "workers": 8,
                "worker_batch": 320292,
            },
            r"batch_size 1281168 \(4 workers x .* write workers=7 or fewer",
        ),
        ({"data__mean": [0.5]}, "data.mean and data.std need 3 numbers .* have 1 and 3"),
        ({"data__std": [0.2, 0.2, 0.0]}, r"data.std=\[0.2,0.2,0\] .* above 0"),
        ({"data__channels": 1, "data__mean": [0.5], "data__std": [0.2]}, "model=small_resnet"),
        (
            {"model__name": "lenet5"},
            "lenet5 takes images of 28 x 28 .*image_size=224; write data=f",
        ),
        ({"data__mean": [0.5, float("nan"), 0.5]}, "data.mean has nan"),
        ({"strategy__name": "servers"}, "strategy.name=servers is unknown; write one of allreduce"),
        ({"strategy__backup": 2}, "strategy.backup=2 says nothing with strategy=allreduce; leave"),
        (
            {"strategy__name": "async", "strategy__slack": 2},
            "slack=2 says nothing with strategy=async; leave it out, or write strategy=bounded",
        ),
        ({"strategy__servers": 2}, "or write strategy=sync or backup or bounded or async"),
        (
            {"strategy__name": "backup", "strategy__backup": 256},
            "backup=256 of workers=256 leaves .* at most 255",
        ),
        (
            {
                "strategy__name": "async",
                "strategy__servers": 257,
                "strategy__topology": "colocated",
            },
            "servers=257 cannot be on .*servers=256 or fewer, or .*topology=central",
        ),
        (
            {"strategy__name": "sync", "cluster__speeds": [1.0, 2.0]},
            r"speeds=\[1,2\] has to be 256 numbers above 0",
        ),
        (
            {"strategy__name": "async", "workers": 2**15 + 1},
            "workers=32769 are too many for .* at most 32768",
        ),
        ({"strategy__name": "async", "optim__equation": 10}, "write optim.equation=9"),
        (
            {"strategy__name": "async", "gradient_compression": "fp16"},
            "fp16 is for sums over .* write gradient_compression=none",
        ),
        ({"cluster__step": 0.0}, "cluster.step=0 .* above 0"),
        ({"cluster__slow_share": 2.0}, "slow_share=2 is more than all steps"),
        ({"data__std": [0.2, float("inf"), 0.2]}, "data.std has inf"),
        ({"model__last_gamma": float("nan")}, "model.last_gamma has nan"),
        ({"comm__bucket_mb": 1e300}, "comm.bucket_mb=1e.300 .* write 1000000000 or less"),
        ({"comm__join_timeout": 1e300}, "comm.join_timeout=1e.300 .* write 1000000000 or less"),
        ({"val_batch": 10**27}, "val_batch=1000.* write 1000000000 or less"),
        ({"target": Target(float("nan"))}, "target.top1_error=nan is not possible"),
        ({"target": Target(101)}, "target.top1_error=101 is no percentage"),
        ({"target": Target(23.6, float("nan"))}, "target.std=nan is not possible"),
        ({"name": "../run"}, "name=../run .* write letters"),
        ({"run_dir": ""}, "run_dir= is empty; write run_dir=PATH"),
    ],
)
def test_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as caught:
        check(changed(BASE, **values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"schedule__warmup_epochs": 30.0},
        {"schedule__milestones": [], "schedule__warmup_epochs": 90.0},
        {"workers": 8, "schedule__warmup_epochs": 0.0},
        {"schedule__warmup": "none", "schedule__warmup_epochs": 0.0},
        {"workers": 40036},
        {"optim__momentum": 0.0, "optim__nesterov": False},
        {"optim__momentum_correction": True, "optim__equation": 10},
        ADAM | {"optim__momentum": 0.01, "optim__beta2": 0.0, "optim__eps": 1e-12},
        ADAGRAD | {"optim__eps": 1e-10, "optim__clip_norm": 1e-3},
        {"seed": 2**64 - 1},
        {"model__name": "lenet5", "data__image_size": 28},
    ],
)
def test_accepted_up_to_the_edge(values: dict[str, Any]) -> None:
    check(changed(BASE, **values))


@given(st.integers(1, 6), st.integers(2, 6), st.integers(2, 200))
def test_kept_tail_never_leaves_a_worker_one_image(workers: int, n: int, examples: int) -> None:
    """Refused exactly where the sampler would give a worker a single image, whose BN is 0."""
    assume(examples >= workers * n)
    recipe = changed(
        BASE, workers=workers, worker_batch=n, data__train_examples=examples, tail="keep"
    )
    sizes = {
        each.by_worker.shape[1]
        for step in range(recipe.steps_per_epoch)
        for each in sampler.step_passes(
            np.arange(examples), epoch=0, step=step, workers=workers, worker_batch=n,
            hosted=range(workers), workers_per_pass=workers,
        )
    }  # fmt: skip
    if 1 in sizes:
        with pytest.raises(Refused, match=r"tail=keep .* tail=drop"):
            check(recipe)
    else:
        check(recipe)
    check(replace(recipe, tail="drop"))


def test_more_processes_than_workers() -> None:
    check_world_size(BASE, 256)
    with pytest.raises(Refused, match=r"257 processes .* workers=256; start at most 256"):
        check_world_size(BASE, 257)


@pytest.mark.parametrize("topology", ["central", "colocated"])
def test_processes_of_servers_are_not_counted_among_the_workers(topology: str) -> None:
    """Each of the most that there may be has a worker, or a server and no worker."""
    recipe = changed(
        BASE, workers=4, strategy__name="sync", strategy__servers=3, strategy__topology=topology
    )
    most = 7 if topology == "central" else 4
    for processes in range(1, most + 1):
        check_world_size(recipe, processes)
        shares = [len(hosted_workers(recipe, processes, rank)) for rank in range(processes)]
        assert sum(shares) == 4
        assert sorted(shares, reverse=True) == shares
        assert shares.count(0) == (min(3, processes - 1) if topology == "central" else 0)
    shared = "workers=4 and strategy.servers=3" if topology == "central" else "workers=4"
    refusal = f"^{most + 1} processes cannot share {shared}; start at most {most} processes$"
    with pytest.raises(Refused, match=refusal):
        check_world_size(recipe, most + 1)


def test_a_command_takes_what_it_knows() -> None:
    other = changed(BASE, data__workload="language", strategy__name="sync")
    check_known(other, "it", "…")
    check_known(BASE, "it", "…", workloads=("images",), strategies=("allreduce",))
    check_known(other, "it", "…", workloads=("images", "language"))
    with pytest.raises(Refused, match=r"^it knows only data\.workload=images or trees, and"):
        check_known(other, "it", "…", workloads=("images", "trees"), strategies=("allreduce",))
    with pytest.raises(Refused, match=r"strategy\.name=allreduce, .* strategy\.name=sync; …$"):
        check_known(other, "it", "…", strategies=("allreduce",))
