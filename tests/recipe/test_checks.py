"""A recipe that makes no sense is refused in one sentence, and one at the edge is not."""

import json
import re
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
import yaml
from helpers.base_recipe import BASE, with_fields
from hypothesis import assume, given
from hypothesis import strategies as st

from lsgd import paths
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.recipe import Recipe, Target
from lsgd.recipe.checks import check_recipe, check_supported, check_world_size
from lsgd.recipe.fields import all_fields, applies_to, flatten
from lsgd.rules import sampler
from lsgd.strategy.tasks import hosted_workers

ADAM = "optim.name=adam optim.nesterov=false"
ADAMW = "optim.name=adamw optim.nesterov=false"
LAMB = "optim.name=lamb optim.nesterov=false"
AKIBA = "optim.name=rmsprop_warmup optim.nesterov=false"
ADAGRAD = "optim.name=adagrad optim.nesterov=false optim.momentum=0.0"
LOCAL = "strategy.name=local"
HOGWILD = "strategy.name=hogwild optim.momentum=0.0 optim.nesterov=false"
LARS = "optim.name=lars"
APEX = "optim.fused=apex"
SMOOTH = "schedule.decay=linear schedule.milestones=[] schedule.end_lr=0.1"
LIVE = "strategy.name=async strategy.order=live"

WRONG = {
    "one_of": "nothing", "some_of": ["nothing"], "at_least": -1, "at_least_or": -1,
    "above_0": 0.0, "finite": float("nan"), "below": 10**30, "at_most": 10**6,
    "folder_name": "../run", "not_empty": "", "evaluation_places": 1.5,
}  # fmt: skip
"""A value outside of each kind of limit, of which test_fields.py has the sentences."""


def with_words(recipe: Recipe, words: str) -> Recipe:
    """The recipe with the values of these words, which are not composed: that would take longer."""
    pairs = (word.split("=", 1) for word in words.split())
    return with_fields(recipe, **{k.replace(".", "__"): yaml.safe_load(v) for k, v in pairs})


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        pytest.param(key, limit, id=f"{key}-{limit}")
        for key, entry in all_fields(Recipe)
        for limit in entry.metadata
        if limit in WRONG and applies_to(entry, "images")
    ],
)
def test_every_field_is_held_to_its_limits(key: str, limit: str) -> None:
    base = with_fields(BASE, target=Target(23.6, 0.1))
    is_list = isinstance(attrgetter(key)(base), list) and limit in ("above_0", "finite")
    wrong = [WRONG[limit]] if is_list else WRONG[limit]
    with pytest.raises(UsageError, match=rf"^{key}[= ]"):
        check_recipe(with_fields(base, **{key.replace(".", "__"): wrong}))


REFUSED = [
        ("worker_batch=1", "worker_batch=1 is not possible; write 2 or more"),
        ("cuda_graphs=true", "cuda_graphs=true .* compile=false; .* write compile=true"),
        ("name=../run", "name=../run .* write letters"),
        ("run_dir=''", "run_dir= is empty; write run_dir=PATH"),
        # The optimizer.
        ("optim.momentum_correction=true", "momentum_correction=true .* optim.equation=10"),
        ("optim.momentum=0.0", "optim.momentum=0 .* write optim.nesterov=false"),
        (f"{LARS} optim.momentum=0.0", "optim.momentum=0 .* write optim.nesterov=false"),
        ("optim.name=adam", "nesterov=true .*=adam; write optim.nesterov=false, as optim=adam"),
        (f"{ADAM} optim.equation=10", "equation=10 .*=adam; .* write optim=sgd or lars"),
        (f"{ADAM} optim.momentum=0.0", "optim.momentum=0 .*=adam, .* write optim.momentum=0.9"),
        (f"{ADAM} optim.eps=0.0", "optim.eps=0 may divide by 0 with optim.name=adam"),
        (f"{ADAGRAD} optim.momentum=0.9", "momentum=0.9 .*=adagrad; write optim.momentum=0, as"),
        ("optim.beta2=0.9", "optim.beta2=0.9 .*=sgd; .*, or write optim=adam or adamw"),
        ("optim.trust=0.02", "optim.trust=0.02 .*=sgd; leave it out, or write optim=lars"),
        ("optim.clip_norm=5.0 optim.equation=10", "clip_norm=5 .* optim.equation=9"),
        (f"{ADAMW} optim.momentum=0.0", "optim.momentum=0 .*=adamw, .* write optim.momentum=0.9"),
        (f"{ADAMW} optim.trust=0.02", "trust=0.02 .*=adamw; leave it out, or write optim=lars"),
        (f"{LAMB} optim.momentum=0.0", "optim.momentum=0 .*=lamb, .* write optim.momentum=0.9"),
        (f"{LAMB} strategy.name=sync", "=lamb needs the norm .*=sync .* write strategy=allreduce"),
        ("optim.bias_correction=false", "=false .*=sgd; leave it out, or write optim=lamb"),
        (f"{AKIBA} strategy.name=sync", "=rmsprop_warmup changes its rule .*=sync"),
        (
            f"{AKIBA} schedule.warmup_start=0.0",
            "schedule.warmup_start=0 .*would divide; write a number above 0",
        ),
        (f"{LARS} strategy.name=sync", "norm of each whole tensor, .* strategy=sync no "),
        (f"{ADAM} {APEX}", "^optim.fused=apex .*name=adam; write optim.name=sgd or lars, or "),
        (f"{APEX} device=cpu", "apex .* GPU.* device=cpu; write device=auto or cuda, or optim"),
        (f"{APEX} optim.momentum=0.0 optim.nesterov=false", "fused=apex .* optim.fused=torch"),
        # The schedule.
        ("schedule.milestones=[30,90]", r"=\[30,90\] has 90.* 90 epochs; .* more epochs"),
        ("schedule.milestones=[0]", r"=\[0\] has 0.* between 0 and 90"),
        ("schedule.milestones=[30,30]", r"=\[30,30\] does not rise; write each once, in order"),
        (f"{SMOOTH} schedule.decay=steps", "schedule.end_lr=0.1 .*=steps; .*=polynomial or l"),
        (f"{SMOOTH} schedule.power=3.0", "power=3 .*decay=linear; .* write schedule=polynom"),
        (f"{SMOOTH} schedule.milestones=[30]", r"=\[30\] .*decay=linear; write .*milestones=\[\],"),
        (f"{SMOOTH} schedule.decay_steps=100", "=5 does not end by .*, where schedule.decay_st"),
        ("schedule.factors=[0.5]", r"factors=\[0.5\] has to have a number for each of .*60,80"),
        ("schedule.factors=[0.5,0.1,0.0]", "factors has 0, which .* a number above 0"),
        ("schedule.warmup_start=0.0 schedule.warmup=none", "warmup_start=0 .*schedule.warmup=none"),
        ("schedule.warmup_start=0 schedule.warmup=constant", "warmup_start=0 learns nothing .*=gr"),
        ("schedule.warmup_epochs=31", "=31 does not end by epoch 30.* up to 30, or .*=none"),
        ("schedule.warmup_epochs=0", "=0 does not end .* schedule.warmup=none"),
        # Evaluation and its numbers.
        ("evaluation.offset=4 evaluation.every=4", "offset=4 is the first .* less than "),
        ("evaluation.offset=1 evaluation.every=0.5", "offset=1 has no effect .*=0.5.*leave it out"),
        ("keep_best=perplexity", "keep_best=perplexity is not .*; write one of loss, top1_error"),
        ("keep_best=val_top1_error", "val_top1_error .*; write .* top1_error.*, .* validation set"),
        ("stop.metric=f1_error stop.patience=5", "stop.metric=f1_error is not a metric of"),
        ("stop.metric=top1_error", "stop.metric=top1_error has no effect .*stop.patience=5, or le"),
        ("metric.stop=true", "metric.stop=true has no target .*epochs_to={top1_error: 24.1}"),
        ('metric.epochs_to={"perplexity":9.0}', "epochs_to.perplexity is not a metric .* top1_err"),
        ('metric.steps_to={"top1_error":101.0}', "=101 can never be reached, .* at most 100"),
        ('metric.steps_to={"loss":-1.0}', "steps_to.loss=-1 can never be reached, or always"),
        ('metric.epochs_to={"loss":1} metric.steps_to={"loss":1}', "are 2 final metrics .* one"),
        # The examples.
        ("workers=40037", "1281184 .*1281167 training examples; write workers=40036 or fewer"),
        ("worker_batch=2000000", "write workers=1 worker_batch=1281167"),
        ("strategy.name=backup strategy.backup=4 workers=8 worker_batch=320292",
         r"batch_size 1281168 \(4 workers x .* write workers=7 or fewer"),
        ("strategy.name=async strategy.local_steps=40037",
         r"1281184 \(1 workers x worker_batch=32 x .*; write strategy.local_steps=40036 or fewer"),
        ("data.mean=[0.5]", "data.mean and data.std need 3 numbers .* have 1 and 3"),
        ("data.crop_area=[0.5,1.5]", r"crop_area=\[0.5,1.5\] has to be the least .* at most 1"),
        ("data.crop_aspect=[1.5,1.0]", r"crop_aspect=\[1.5,1\] has to be the least and the large"),
        ("data.crop_aspect=[1.0]", r"crop_aspect=\[1\] has to be the least and the large"),
        ("data.augmentation=none data.augmented_epochs=5", "no effect .* with any part"),
        ("data.std=[0.2,0.2,0.0]", "data.std has 0, which .* a number above 0"),
        ("data.channels=2 data.mean=[0.5,0.5] data.std=[0.2,0.2]", "model=small_resnet"),
        ("data.channels=1", r"write data.mean=\[0.449\] data.std=\[0.226\]"),
        ("model.name=lenet5", "lenet5 takes images of 28 x 28 .*image_size=224; write data=f"),
        # The strategy.
        ("strategy.backup=2", "strategy.backup=2 has no effect with strategy=allreduce; leave"),
        ("strategy.name=async strategy.slack=2", "slack=2 has no effect .* write strategy=bounded"),
        ("strategy.sparse_rows=true", "sparse_rows=true has no effect .* write strategy=sync$"),
        ("strategy.order=live", "order=live has no effect with strategy=allreduce"),
        (f"{HOGWILD} strategy.order=live", "order=live has no effect with strategy=hogwild"),
        (f"{LOCAL} strategy.servers=2", "servers=2 has no effect with strategy=local; leave"),
        ("strategy.name=backup strategy.backup=256", "backup=256 of workers=256 .* at most 255"),
        ("strategy.name=async strategy.servers=257 strategy.topology=colocated",
         "servers=257 cannot be on .*servers=256 or fewer, or .*topology=central"),
        ("strategy.name=sync cluster.speeds=[1,2]", r"=\[1,2\] has to be 256 numbers above 0"),
        ("strategy.name=async workers=16385", "=16385 are too many for .* at most 16384"),
        ("strategy.name=async optim.equation=10", "strategy=async .* write optim.equation=9"),
        (f"{LOCAL} gradient_compression=fp16", "fp16 .* strategy=local .* gradient_compression=no"),
        (f"{LOCAL} precision=float16", "precision=float16 .* strategy=local .* precision=bfloat16"),
        ("strategy.name=sync precision=float16", "strategy=sync computes no such .*=allreduce"),
        ("optim.name=a.b:C optim.momentum=0 optim.nesterov=false precision=float16",
         "float16 skips .* optim=a.b:C, code .*=bfloat16"),
        ("noise_scale=true precision=float16", "noise_scale=true measures .* or leave it out"),
        (f"{LIVE} checkpoint_steps=8", "checkpoint_steps=8 would halt .* strategy.order=live"),
        ("strategy.name=async strategy.order=/no/orders.npz", "=/no/orders.npz is neither .* file"),
        ("strategy.name=backup strategy.backup=1 strategy.order=live strategy.servers=2 "
         "optim.clip_norm=1.0", "clip_norm=1 is for the norm of a whole update"),
        ("strategy.name=bounded strategy.outer=elastic", "elastic moves .*=mean, sgd or nesterov"),
        ("strategy.name=backup strategy.backup=1 strategy.local_steps=8", "=8 has no effect"),
        (f"{LOCAL} strategy.outer_lr=0.7", "outer_lr=0.7 .*=mean; .*outer=sgd or nesterov"),
        (f"{LOCAL} strategy.moving_rate=0.001", "moving_rate=0.001 .* strategy.outer=elastic"),
        (f"{LOCAL} strategy.outer=nesterov strategy.outer_lr=0.7", "write strategy.outer=sgd"),
        (f"{LOCAL} strategy.outer=elastic", "=0 moves no .* at most 1 / 256, .*=0.0035"),
        (f"{LOCAL} strategy.outer=elastic strategy.moving_rate=0.01",
         "moving_rate=0.01 of workers=256 moves .* at most 1 / 256, .*moving_rate=0.0035"),
        (f"{HOGWILD} optim.momentum=0.9", "^strategy=hogwild is plain SGD, .* optim.momentum=0.9"),
        (f"{HOGWILD} {ADAGRAD}", "not support optim.name=adagrad .*; write optim=s"),
        (f"{LIVE} evaluation.every=0.5", "evaluation.every=0.5 would halt .* strategy.order=live"),
        (f"{LIVE} checkpoint_minutes=5", "minutes=5.* would halt .* strategy.order=live"),
        (f"{HOGWILD} checkpoint_minutes=0.5", "=0.5 would halt .* strategy=hogwild, which"),
        (f"{HOGWILD} profile=true", "profile=true compares .* with strategy=hogwild each makes"),
        (f"{LIVE} profile=true", "profile=true compares .* strategy.order=live each .*; leave it"),
        (f"{HOGWILD} checkpoint_steps=5", "would halt all workers of strategy=hogwild, which"),
]  # fmt: skip
"""Words that make no sense, and what the sentence says that refuses them."""
WORD = r"[a-z_]+(?:\.\w+)*=(?:\[[^\]…]*\]|\{[^}…]*\}|[\w.+-]*\w)"
ADVICE = re.compile(rf"(?:\bwrite |\bor )(?:[\w /]*,? ?such as )?({WORD}(?: {WORD})*)")


def advised(sentence: str) -> list[list[str]]:
    """The words of each advice at the end of a refusal, with those of a choice's file."""
    advice = re.sub(r"(, as \S+ does|less than \S+)", "", sentence.rpartition("; ")[2])
    found = ADVICE.findall(advice)
    if advice.startswith("leave it out"):
        key = sentence.partition("=")[0]
        value = json.dumps(attrgetter(key)(BASE)).strip('"')
        found.insert(0, f"{key}={value}")
    return [[each for word in re.findall(WORD, one) for each in fields_of(word)] for one in found]


def fields_of(word: str) -> list[str]:
    """The word, or where it chooses a file of conf/ the words of that."""
    key, _, value = word.partition("=")
    file = paths.conf_dir() / key / f"{value}.yaml"
    if not file.exists():
        return [word.replace(": ", ":").replace(":", ": ")]
    text = file.read_text()
    values = yaml.safe_load(text) or {}
    values = values if "_global_" in text else {key: values}
    named = {} if key == "schedule" else {f"{key}.name": value}
    said = (named | dict(flatten(values))).items()
    return [f"{each}={json.dumps(v)}" for each, v in said if "deviations" not in each and v != {}]


@pytest.mark.parametrize("words", [words for words, _ in REFUSED])
def test_what_a_refusal_advises_is_accepted(words: str) -> None:
    """At once, or by what the next one advises."""
    with pytest.raises(UsageError) as refused:
        check_recipe(with_words(BASE, words))
    for advice in advised(str(refused.value)):
        recipe, given = with_words(BASE, words), advice
        for _ in range(5):
            recipe = with_fields(recipe, **dict(map(parsed, given)))
            try:
                check_recipe(recipe)
                break
            except UsageError as again:
                given = advised(str(again))[0]
        check_recipe(recipe)


def parsed(word: str) -> tuple[str, object]:
    key, _, value = word.partition("=")
    read = yaml.safe_load(value)
    number = isinstance(read, str) and re.fullmatch(r"[\d.]+e-?\d+", read)
    return key.replace(".", "__"), float(read) if number else read


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_refused_in_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        check_recipe(with_words(BASE, words))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("optim.momentum=0.9", "momentum=0.9; write optim.momentum=0,"),
        ("optim.weight_decay=0.0001", "weight_decay=0.0001; write optim.weight_decay=0,"),
        ("optim.equation=10", "equation=10; write optim.equation=9,"),
        ("optim.name=adagrad", "name=adagrad; write optim.name=sgd,"),
    ],
)
def test_rows_travel_where_one_without_gradient_stands_still(word: str, fix: str) -> None:
    sparse = "strategy.name=sync strategy.sparse_rows=true optim.momentum=0 optim.nesterov=false"
    plain = with_words(BASE, f"{sparse} optim.weight_decay=0")
    check_recipe(plain)
    with pytest.raises(UsageError, match=rf"^strategy.sparse_rows=true .* optim.{fix} or strategy"):
        check_recipe(with_words(plain, word))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "schedule.warmup_epochs=30",
        "schedule.milestones=[] schedule.warmup_epochs=90",
        "workers=8 schedule.warmup_epochs=0",
        "schedule.warmup=none schedule.warmup_epochs=0",
        "workers=40036",
        "optim.momentum=0 optim.nesterov=false",
        "optim.momentum_correction=true optim.equation=10",
        f"{ADAM} optim.momentum=0.01 optim.beta2=0.0 optim.eps=0.000000000001",
        f"{ADAGRAD} optim.eps=0.0000000001 optim.clip_norm=0.001",
        f"seed={2**64 - 1}",
        "model.name=lenet5 data.image_size=28",
        f"{LOCAL} strategy.local_steps=1000000 workers=65536 worker_batch=2",
        f"{LOCAL} strategy.outer=elastic strategy.moving_rate={1 / 256}",
        f"{HOGWILD} optim.clip_norm=1.0 workers=32768",
        f"{LARS} {APEX} precision=bfloat16 device=cuda",
        f"{LARS} {APEX} precision=float16 gradient_compression=fp16 optim.clip_norm=1.0",
        f"{LOCAL} {APEX} optim.clip_norm=1.0",
    ],
)
def test_accepted_up_to_the_edge(words: str) -> None:
    check_recipe(with_words(BASE, words))


@given(st.integers(1, 6), st.integers(2, 6), st.integers(2, 200))
def test_kept_tail_never_leaves_a_worker_one_image(workers: int, n: int, examples: int) -> None:
    """Refused exactly where the sampler would give a worker a single image, whose BN is 0."""
    assume(examples >= workers * n)
    recipe = with_fields(
        BASE, workers=workers, worker_batch=n, data__train_examples=examples, tail="keep"
    )
    sizes = {
        each.by_worker.shape[1]
        for step in range(recipe.steps_per_epoch)
        for each in sampler.step_micro_batches(
            np.arange(examples), epoch=0, step=step, workers=workers, worker_batch=n,
            hosted=range(workers), workers_per_pass=workers,
        )
    }  # fmt: skip
    if 1 in sizes:
        with pytest.raises(UsageError, match=r"tail=keep .* tail=drop"):
            check_recipe(recipe)
    else:
        check_recipe(recipe)
    check_recipe(replace(recipe, tail="drop"))


def test_more_processes_than_workers() -> None:
    check_world_size(BASE, 256)
    with pytest.raises(UsageError, match=r"257 processes .* workers=256; start 256 or fewer"):
        check_world_size(BASE, 257)
    with pytest.raises(UsageError, match=r"^2 processes cannot share workers=1; start 1$"):
        check_world_size(with_fields(BASE, workers=1), 2)


def test_workers_that_share_memory_have_a_process_each() -> None:
    recipe = with_words(BASE, f"workers=4 {HOGWILD}")
    check_world_size(recipe, 4)
    with pytest.raises(UsageError, match=r"^5 processes cannot share workers=4; start 4 or fewer"):
        check_world_size(recipe, 5)
    with pytest.raises(
        UsageError, match=r"^workers=4 on 3 .* start 4 processes .* write workers=3$"
    ):
        check_world_size(recipe, 3)


def test_a_text_is_not_for_workers_that_take_any_window() -> None:
    plain = ["optim.momentum=0", "optim.nesterov=false"]
    for strategy in ("async", "hogwild"):
        with pytest.raises(
            UsageError, match=rf"^strategy={strategy} gives a worker any next batch"
        ):
            load_recipe(["+recipe=ptb_small", f"strategy={strategy}", *plain])


@pytest.mark.parametrize("topology", ["central", "colocated"])
def test_processes_of_servers_are_not_counted_among_the_workers(topology: str) -> None:
    """Each of the most that there may be has a worker, or a server and no worker."""
    recipe = with_fields(
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
    with pytest.raises(UsageError, match=refusal):
        check_world_size(recipe, most + 1)


def test_a_command_takes_what_it_knows() -> None:
    other = with_fields(BASE, data__workload="language", strategy__name="sync")
    check_supported(other, "it", "…")
    check_supported(BASE, "it", "…", workloads=("images",), strategies=("allreduce",))
    check_supported(other, "it", "…", workloads=("images", "language"))
    with pytest.raises(UsageError, match=r"^it supports only data\.workload=images or trees, and"):
        check_supported(other, "it", "…", workloads=("images", "trees"), strategies=("allreduce",))
    with pytest.raises(UsageError, match=r"strategy\.name=allreduce, .* strategy\.name=sync; …$"):
        check_supported(other, "it", "…", strategies=("allreduce",))


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
    with pytest.raises(UsageError, match="is more than the 24 training examples; write") as refused:
        load_recipe(["+recipe=bs256", *few, *words])
    _, _, shown = str(refused.value).partition("; write ")
    recipe = load_recipe(["+recipe=bs256", *few, *words, *shown.split()])
    assert recipe.batch_size == recipe.data.train_examples
