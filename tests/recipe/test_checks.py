"""A recipe that makes no sense is refused in one sentence, and one at the edge is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.base_recipe import BASE, changed
from hypothesis import assume, given
from hypothesis import strategies as st

from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.recipe import Target
from lsgd.recipe.checks import check, check_known, check_world_size
from lsgd.rules import sampler
from lsgd.strategy.tasks import hosted_workers

ADAM = {"optim__name": "adam", "optim__nesterov": False}
LOCAL = {"strategy__name": "local"}
HOGWILD = {"strategy__name": "hogwild", "optim__momentum": 0.0, "optim__nesterov": False}
LARS = {"optim__name": "lars"}
APEX = {"optim__fused": "apex"}
SMOOTH = {"schedule__decay": "linear", "schedule__milestones": [], "schedule__end_lr": 0.1}
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
        ({"cuda_graphs": True}, "cuda_graphs=true replays .* write compile=true too"),
        ({"optim__equation": 8}, "optim.equation=8 is unknown; write one of 9, 10"),
        ({"model__name": "resnet18"}, "model.name=resnet18 .* resnet50, resnet101, resnet20"),
        ({"optim__momentum_correction": True}, "momentum_correction=true .* optim.equation=10"),
        ({"optim__momentum": 1.0}, "optim.momentum=1 .* below 1"),
        ({"optim__momentum": 0.0}, "optim.momentum=0 .* write optim.nesterov=false"),
        ({"optim__name": "rmsprop"}, "optim.name=rmsprop is unknown; write one of sgd, lars, "),
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
        (LARS | {"optim__clip_norm": 1.0, "optim__equation": 10}, "clip_norm=1 .*write optim.equa"),
        (LARS | {"optim__trust": 0.0}, "optim.trust=0 is not possible; write a number above 0"),
        (LARS | {"optim__adapts": "bn"}, "optim.adapts=bn is unknown; write one of weights, all"),
        (LARS | {"optim__momentum": 0.0}, "optim.momentum=0 .* write optim.nesterov=false"),
        (LARS | {"strategy__name": "sync"}, "norm of each whole tensor, .* strategy=sync nobody"),
        ({"optim__trust": 0.02}, "optim.trust=0.02 .* optim.name=sgd; write optim.trust=0.001"),
        ({"optim__adapts": "all"}, "adapts=all .* optim.name=sgd; write optim.adapts=weights"),
        (ADAM | {"optim__eps": 0.0}, "optim.eps=0 may divide by 0 with optim.name=adam"),
        ({"optim__fused": "cuda"}, "optim.fused=cuda is unknown; write one of torch, apex"),
        (
            ADAM | APEX,
            "^optim.fused=apex .*name=adam; write optim.name=sgd or lars, or optim.fused=t",
        ),
        (APEX | {"optim__equation": 10}, "apex .*equation=10; write optim.equation=9, or .*=torch"),
        (APEX | {"precision": "float64"}, "apex .*; write precision=float32 or tf32 or bfloat16, "),
        (APEX | {"device": "cpu"}, "apex .* GPU.* device=cpu; write device=auto or cuda, or optim"),
        (
            APEX | {"strategy__name": "sync"},
            "apex .* whole models .*name=allreduce or local, or opt",
        ),
        (
            APEX | {"optim__momentum": 0.0, "optim__nesterov": False},
            "optim.fused=apex .*optim.momentum=0 leaves none, .* write optim.fused=torch",
        ),
        ({"label_smoothing": 1.0}, "label_smoothing=1 leaves nothing of the label"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1 is not possible; write 0 or more"),
        (SMOOTH | {"schedule__decay": "steps"}, "schedule.end_lr=0.1 .*=steps; .*=polynomial or l"),
        (SMOOTH | {"schedule__decay": "exp"}, "schedule.decay=exp is unknown; write one of steps"),
        (SMOOTH | {"schedule__power": 3.0}, "power=3 .*decay=linear; .* write schedule=polynom"),
        (
            SMOOTH | {"schedule__milestones": [30.0]},
            r"=\[30\] are for drops .*decay=linear has non",
        ),
        (SMOOTH | {"schedule__decay_steps": 100}, "=5 does not end by .*, where schedule.decay_st"),
        (
            {"schedule__decay_steps": 100},
            "schedule.decay_steps=100 says nothing with .*decay=steps",
        ),
        ({"schedule__factors": [0.5]}, r"factors=\[0.5\] has to have a number for each of .*60,80"),
        (
            {"schedule__factors": [0.5, 0.1, 0.0]},
            "are shares of the full lr; write numbers above 0",
        ),
        ({"evaluation__every": 0}, "evaluation.every=0 is not possible; write 1 or more"),
        ({"evaluation__offset": 4, "evaluation__every": 4}, "offset=4 is the first .* less than "),
        ({"metric__stop": True}, "metric.stop=true has no target .*epochs_to={top1_error: 24.1}"),
        ({"metric__epochs_to": {"perplexity": 9.0}}, "epochs_to.perplexity is no rate .* top1_err"),
        ({"metric__steps_to": {"top1_error": 101.0}}, "=101 can never be reached, .* at most 100"),
        ({"metric__steps_to": {"loss": -1.0}}, "steps_to.loss=-1 can never be reached, or always"),
        (
            {"metric__epochs_to": {"loss": 1.0}, "metric__steps_to": {"loss": 1.0}},
            "metric.epochs_to.loss and metric.steps_to.loss are 2 numbers of a run; write one",
        ),
        ({"schedule__warmup_start": -0.1}, "warmup_start=-0.1 is not possible; write 0 or more"),
        (
            {"schedule__warmup_start": 0.0, "schedule__warmup": "none"},
            "warmup_start=0 says nothing with schedule.warmup=none",
        ),
        (
            {"schedule__warmup_start": 0.0, "schedule__warmup": "constant"},
            "constant .*warmup_start=0 learns nothing until the warmup ends; write .*=gradual",
        ),
        ({"schedule__warmup_epochs": 31.0}, "=31 does not end by epoch 30.* up to 30, or .*=none"),
        ({"schedule__warmup_epochs": 0.0}, "=0 does not end .* schedule.warmup=none"),
        ({"workers": 40037}, "1281184 .*1281167 training examples; write workers=40036 or fewer"),
        ({"worker_batch": 2000000}, "write workers=1 worker_batch=1281167"),
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
        ({"strategy__sparse_rows": True}, "sparse_rows=True says nothing .* write strategy=sync$"),
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
            {"strategy__name": "async", "workers": 2**14 + 1},
            "workers=16385 are too many for .* at most 16384",
        ),
        ({"strategy__name": "async", "optim__equation": 10}, "write optim.equation=9"),
        (
            {"strategy__name": "async", "gradient_compression": "fp16"},
            "fp16 is for sums over .* write gradient_compression=none",
        ),
        ({"strategy__local_steps": 4}, "local_steps=4 says nothing with strategy=allreduce; leave"),
        ({"strategy__outer": "sgd"}, "or write strategy=local or bounded or async"),
        (
            {"strategy__name": "async", "strategy__outer": "elastic", "strategy__moving_rate": 0.1},
            "moving_rate=0.1 says nothing with strategy=async",
        ),
        (
            {"strategy__name": "async", "strategy__order": "live", "checkpoint_steps": 8},
            "checkpoint_steps=8 would halt all workers of strategy.order=live",
        ),
        (
            {"strategy__name": "async", "strategy__order": "/no/orders.npz"},
            "strategy.order=/no/orders.npz is neither virtual nor live, and no file; give the",
        ),
        (
            {"strategy__name": "sync", "strategy__order": "live"},
            "strategy.order=live says nothing with strategy=sync",
        ),
        (
            {
                "strategy__name": "backup",
                "strategy__backup": 1,
                "strategy__order": "live",
                "strategy__servers": 2,
                "optim__clip_norm": 1.0,
            },
            "clip_norm=1 is for the norm of a whole update",
        ),
        (
            {"strategy__name": "bounded", "strategy__outer": "elastic"},
            "elastic draws .* with strategy=bounded each pushes .*=mean, sgd or nesterov",
        ),
        (
            {"strategy__name": "async", "strategy__local_steps": 8, "strategy__outer_lr": 0.7},
            "outer_lr=0.7 says nothing with strategy.outer=mean",
        ),
        (
            {"strategy__name": "backup", "strategy__backup": 1, "strategy__local_steps": 8},
            "local_steps=8 says nothing with strategy=backup",
        ),
        (
            {"strategy__name": "async", "strategy__local_steps": 40037},
            r"1281184 \(1 workers x worker_batch=32 x strategy.local_steps=40037\) .*"
            "; write strategy.local_steps=40036 or fewer",
        ),
        (LOCAL | {"strategy__local_steps": 0}, "local_steps=0 is not possible; write 1 or more"),
        (LOCAL | {"strategy__servers": 2}, "servers=2 says nothing with strategy=local; leave"),
        (LOCAL | {"strategy__outer": "adam"}, "outer=adam is unknown; write one of mean, sgd, nes"),
        (
            LOCAL | {"strategy__outer_lr": 0.7},
            "outer_lr=0.7 says nothing with strategy.outer=mean; .*outer=sgd or nesterov",
        ),
        (
            LOCAL | {"strategy__outer": "elastic", "strategy__outer_momentum": 0.9},
            "outer_momentum=0.9 says nothing with strategy.outer=elastic; .*outer=sgd or nesterov",
        ),
        (
            LOCAL | {"strategy__moving_rate": 0.001},
            "moving_rate=0.001 says nothing with strategy.outer=mean; .* strategy.outer=elastic",
        ),
        (
            LOCAL | {"strategy__outer": "nesterov", "strategy__outer_lr": 0.7},
            "looks ahead .*outer_momentum=0 leaves none; write strategy.outer=sgd",
        ),
        (
            LOCAL | {"strategy__outer": "sgd", "strategy__outer_momentum": 1.0},
            "outer_momentum=1 grows without end; write a number below 1",
        ),
        (
            LOCAL | {"strategy__outer": "elastic"},
            "moving_rate=0 draws no .* at most 1 / 256, such as strategy.moving_rate=0.0035",
        ),
        (
            LOCAL | {"strategy__outer": "elastic", "strategy__moving_rate": 0.01},
            "moving_rate=0.01 of workers=256 moves .* at most 1 / 256, .*moving_rate=0.0035",
        ),
        (LOCAL | {"optim__equation": 10}, "strategy=local makes others; write optim.equation=9"),
        (
            LOCAL | {"gradient_compression": "fp16"},
            "fp16 is for sums over .* strategy=local .* write gradient_compression=none",
        ),
        (
            HOGWILD | {"optim__momentum": 0.9},
            "^strategy=hogwild is plain SGD, .* optim.momentum=0.9; .*nesterov=false, or strat",
        ),
        (
            HOGWILD | ADAGRAD,
            "not for optim.name=adagrad with optim.momentum=0; write optim=sgd",
        ),
        (HOGWILD | {"checkpoint_steps": 5}, "would halt all workers of strategy=hogwild, which"),
        (HOGWILD | {"strategy__order": "live"}, "order=live says nothing with strategy=hogwild"),
        (HOGWILD | {"optim__equation": 10}, "strategy=hogwild makes others; write optim.equation"),
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


PLAIN = {"optim__momentum": 0.0, "optim__nesterov": False, "optim__weight_decay": 0.0}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"optim__momentum": 0.9}, "momentum=0.9; write optim.momentum=0,"),
        ({"optim__weight_decay": 1e-4}, "weight_decay=0.0001; write optim.weight_decay=0,"),
        ({"optim__equation": 10}, "equation=10; write optim.equation=9,"),
        ({"optim__name": "adagrad"}, "name=adagrad; write optim.name=sgd,"),
    ],
    ids=["momentum", "decay", "velocity", "adagrad"],
)
def test_rows_travel_where_one_without_gradient_stands_still(values, key) -> None:
    plain = changed(BASE, strategy__name="sync", strategy__sparse_rows=True, **PLAIN)
    check(plain)
    with pytest.raises(Refused, match=rf"^strategy.sparse_rows=true .* optim.{key} or strategy"):
        check(changed(plain, **values))


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
        LOCAL | {"strategy__local_steps": 10**6, "workers": 2**16, "worker_batch": 2},
        LOCAL | {"strategy__outer": "elastic", "strategy__moving_rate": 1 / 256},
        HOGWILD | {"optim__clip_norm": 1.0, "workers": 2**15},
        LARS | APEX | {"precision": "bfloat16", "device": "cuda"},
        LOCAL | APEX | {"optim__clip_norm": 1.0},
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
    with pytest.raises(Refused, match=r"257 processes .* workers=256; start 256 or fewer"):
        check_world_size(BASE, 257)
    with pytest.raises(Refused, match=r"^2 processes cannot share workers=1; start 1$"):
        check_world_size(changed(BASE, workers=1), 2)


def test_workers_that_share_memory_have_a_process_each() -> None:
    recipe = changed(BASE, workers=4, **HOGWILD)
    check_world_size(recipe, 4)
    with pytest.raises(Refused, match=r"^5 processes cannot share workers=4; start 4 or fewer"):
        check_world_size(recipe, 5)
    with pytest.raises(Refused, match=r"^workers=4 on 3 .* start 4 processes .* write workers=3$"):
        check_world_size(recipe, 3)


def test_a_text_is_not_for_workers_that_take_any_window() -> None:
    plain = ["optim.momentum=0", "optim.nesterov=false"]
    for strategy in ("async", "hogwild"):
        with pytest.raises(Refused, match=rf"^strategy={strategy} gives a worker any next batch"):
            load_recipe(["+recipe=ptb_small", f"strategy={strategy}", *plain])


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
    refusal = f"^{most + 1} processes cannot share {shared}; start {most} or fewer$"
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


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["strategy=backup", "strategy.backup=2"],
        ["strategy=async", "optim.momentum=0", "optim.nesterov=false"],
        ["strategy=async", "strategy.local_steps=3"],
    ],
)
def test_the_words_for_few_examples_are_accepted(words: list[str]) -> None:
    """Not one of the 8 workers has enough of them."""
    few = ["data=folder", "data.classes=3", "data.train_examples=24", "data.val_examples=9"]
    with pytest.raises(Refused, match="is more than the 24 training examples; write") as refused:
        load_recipe(["+recipe=bs256", *few, *words])
    _, _, shown = str(refused.value).partition("; write ")
    recipe = load_recipe(["+recipe=bs256", *few, *words, *shown.split()])
    assert recipe.batch_size == recipe.data.train_examples
