"""Mistakes planted into training scripts: each is named by its rule and its line, and no other."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.audited import UPDATES, deviations, watched

from lsgd.audit.__main__ import notes
from lsgd.audit.facts import observe, script_recipe
from lsgd.audit.gradients import observe_gradient
from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import ScriptProcess, one_job
from lsgd.audit.watch.data import DataWatch
from lsgd.audit.watch.record import Record
from lsgd.check.papers import PAPERS, apply_script_rules

SCRIPTS = Path(__file__).parent / "scripts"
STYLED = SCRIPTS / "audited_styles.py"
IMAGENET, TRAINER = SCRIPTS / "audited_imagenet.py", SCRIPTS / "audited_trainer.py"
SGD, LOADER = "return torch.optim.SGD(", "loader = DataLoader("
FOR, BACKWARD = "for i, (images, target) in enumerate(loader)", "scaler.scale(loss).backward()"
EVALUATED = "return sum((model(images)"

ONE: list[tuple[str, dict[str, str], str]] = [
    ("conv_init", {"conv_init": "self.conv1 ="}, "3 convolutions otherwise"),
    ("head", {"fc_init": "self.fc ="}, "standard deviation 0.2"),
    ("last_gamma", {"last_gamma": "self.bn2 ="}, "1 in the last norm of 1 block"),
    ("decayed_norms", {"batchnorm_decay": SGD}, "0.0001 on gammas and betas (6)"),
    ("frozen", {"weight_decay": SGD}, "1 are not trained, such as fc.bias"),
    ("adam", {"momentum": "return torch.optim.Adam("}, "Adam, not momentum SGD"),
    ("no_nesterov", {"momentum": SGD}, "equation (9), not Nesterov, m = 0.9"),
    ("no_scaling", {"reference_lr": SGD}, "lr 0.1 for 32 images, by linear scaling 0.8"),
    ("bn_momentum", {"running_average": "self.bn2 ="}, "0.99 in other layers"),
    ("sum_loss", {"gradient": "loss = F.cross_entropy"}, "32 times the mean"),
    ("no_zero_grad", {"gradient": BACKWARD}, "not set to zero between updates"),
    (
        "clip_before_unscale",
        {"clipping": "nn.utils.clip_grad_norm_", "momentum": SGD},
        "while the loss scale is still in the gradients",
    ),
    ("tail", {"tail": LOADER}, "steps of 16 and 32 images"),
    ("not_shuffled", {"shuffling": LOADER}, "not in random order"),
    (
        "one_stream",
        {"random_streams": LOADER},
        "worker 1 draw the same random numbers of Images.generator, in each epoch again",
    ),
    (
        "transforms_stream",
        {"random_streams": LOADER},
        "worker 1 draw the same random numbers of Noise.generator, in each epoch again",
    ),
    ("left_in_eval", {"training_mode": "loss = F.cross_entropy"}, "from update 5 on"),
    ("no_eval", {"evaluation_mode": EVALUATED}, "passes in training mode"),
    ("eval_grad", {"evaluation_mode": EVALUATED}, "4 of 4 passes keep gradients"),
    ("val_tail", {"evaluation": "val_loader ="}, "3 of 51 never"),
]
TWO: list[tuple[str, dict[str, str], str]] = [
    (
        "no_ddp",
        {"gradient": BACKWARD, "parameters": "scaler.step(optimizer)"},
        "each of 2 processes uses its own gradient",
    ),
    ("multiplied", {"gradient": "loss = F.cross_entropy"}, "whose mean is taken already"),
    ("by_hand", {"gradient": "dist.all_reduce(parameter.grad)"}, "summed, not averaged"),
    ("no_sampler", {"shuffling": LOADER}, "288 images of an epoch are in more than one process"),
    ("no_set_epoch", {"shuffling": FOR}, "epoch 2 has the order of epoch 1; set_epoch is never"),
    ("equal_seeds", {"random_streams": LOADER}, "draw the same random numbers of torch"),
    ("padded", {"evaluation": "val_loader ="}, "1 of 51 counted more often"),
]
OF_TRAINER: list[tuple[str, dict[str, str], str]] = [
    ("undivided", {"gradient": "loss.backward()"}, "the losses of 16 micro-batches are summed"),
    ("undivided criterion", {"gradient": "loss.backward()"}, "16 micro-batches are summed"),
    ("no_warmup", {"warmup": "LambdaLR(sgd, factor)"}, "none, lr 0.2 from the first step"),
    ("warmup_by_epoch", {"warmup": "LambdaLR(sgd, factor)"}, "2 values in 4 updates"),
    ("warmup_from_0", {"warmup": "LambdaLR(sgd, factor)"}, "gradual, 0 to 0.2 over 5 epochs"),
    ("smoothing", {"label_smoothing": "self.loss(logits"}, "0.1 of a label"),
    ("bf16", {"precision": 'self.model(**batch)["loss"]'}, "bfloat16 and float32"),
    ("clip", {"momentum": "sgd = torch.optim.SGD("}, "shortened to norm 0.05"),
    ("own_average", {"averaging": "AveragedModel(self.model)"}, "an average of the weights"),
]

STYLES: list[tuple[str, dict[str, str], str]] = [
    *((style, {}, "") for style in (
        "plain", "body_first", "head_first", "numpy", "fused", "teacher", "momentum_teacher",
        "critic", "checkpointing", "keywords", "endless", "many_epochs", "accuracy",
    )),
    *((style, {}, "") for style in ("sam", "sam_of_data", "sam_without_statistics")),
    (
        "lbfgs",
        {"momentum": "torch.optim.LBFGS(", "weight_decay": "torch.optim.LBFGS("},
        "LBFGS, not momentum SGD",
    ),
    (
        "cleared",
        {
            "gradient": "F.cross_entropy(model(images.flip(3))", "reference_lr": "SGD(",
            "running_average": "self.conv, self.bn =",
        },
        "not the sum over its backward passes, as it is changed or cleared between",
    ),
    (
        "views",
        {"momentum": "return torch.optim.SGD("},
        "of gradients shortened to norm 0.01",
    ),
    (
        "value_clip",
        {"gradient": "nn.utils.clip_grad_value_"},
        "cut off at 0.001 in each element",
    ),
    (
        "own_decay",
        {"gradient": "scaler.scale(loss).backward()"},
        "not the sum over its backward passes, as it is changed or cleared between",
    ),
]  # fmt: skip
"""What scripts do besides a plain loop, without or with a deviation that is meant."""


def assert_named(
    script: Path, mistake: str, rules: dict[str, str], says: str, *, processes: int, **own: int
) -> None:
    """The deviations are those of these rules, each at the line with its text; the first says so.

    Nobody corrects BN's momentum for micro-batches, so the Trainer's script has that deviation too.
    """
    found = deviations(script, mistake.split(), processes=processes, **own)
    if script == TRAINER:
        assert found.pop("running_average")[0].startswith("momentum 0.185302 per step, by 16")
    assert found.keys() == rules.keys()
    lines = script.read_text().splitlines()
    for rule, text in rules.items():
        assert text in lines[found[rule][1] - 1]
    for rule in [*rules][:1]:
        assert says in found[rule][0]


@pytest.mark.parametrize(
    ("script", "processes"),
    [(IMAGENET, 1), (IMAGENET, 2), pytest.param(TRAINER, 1, marks=pytest.mark.slow)],
)
def test_no_false_alarm(script: Path, processes: int) -> None:
    assert_named(script, "-", {}, "", processes=processes)


@pytest.mark.parametrize("style", ["shard", "inner_average"])
def test_no_false_alarm_of_a_librarys_style(style: str) -> None:
    """A batch sampler that holds another, and a network that holds an average of its weights."""
    assert_named(IMAGENET, style, {}, "", processes=1)


@pytest.mark.parametrize("difference", [0.015, 0.5])
@pytest.mark.parametrize("is_exchanged", [True, False])
def test_gradients_of_two_processes(difference: float, is_exchanged: bool) -> None:
    """By chance they may differ so little that each is nearly their mean: that is no mistake."""
    local = np.outer([1.0, 1.0 + difference], [3.0, -2.0, 5.0])
    used = [local.mean(axis=0)] * 2 if is_exchanged else local
    loss = {
        "reduction": "mean", "weight": 1.0, "output": 1, "has_others": False, "is_uneven": False,
        "targets": 8, "elements": 8, "examples": 8, "place": "train.py:1",
    }  # fmt: skip
    line = {
        "kind": "update", "sum": None, "clip": None, "scale": 1.0, "losses": [loss], "factor": 1.0,
        "passes": [{"images": 8, "train": True, "place": "", "calls": 1}],
        "backward_place": "train.py:1",
    }  # fmt: skip
    job = AuditedJob(
        [
            ScriptProcess([line | {"local": [*one], "used": [*other]}])
            for one, other in zip(local, used, strict=True)
        ]
    )
    [fact] = observe_gradient(job)
    is_mistake = not is_exchanged and difference > 0.1
    assert fact.value is not is_mistake


def test_of_several_trainings_one_is_asked() -> None:
    """Two without a process group, and two jobs of two processes, one after the other."""

    def process(pid: int, parent: int, size: int, updates: int) -> ScriptProcess:
        line = {"kind": "process", "pid": pid, "parent": parent, "world_size": size, "rank": 0}
        return ScriptProcess([line, *({"kind": "update"} for _ in range(updates))])

    alone = [process(pid, 1, 1, updates) for pid, updates in ((7, 3), (8, 9))]
    assert one_job(alone) == alone[1:]
    jobs = [process(pid, parent, 2, 5) for pid, parent in ((1, 10), (2, 20), (3, 10), (4, 20))]
    assert one_job(jobs) == [jobs[0], jobs[2]]
    assert one_job(jobs[:2]) == jobs[:2]


def test_the_order_is_unknown_after_a_hook_of_loaders_has_failed(tmp_path: Path) -> None:
    """Otherwise the indices of one loader would count as those of another."""
    record = Record(str(tmp_path), 1, 1)
    data = DataWatch(record)
    assert [each["kind"] for each in data.lines()] == ["set_epochs"]
    record.failures.append("DataWatch._begin_epoch: AttributeError: 'sampler'")
    assert [*data.lines()] == []


def test_a_loader_that_a_library_makes_anew_has_the_scripts_line() -> None:
    [(rule, (_, line))] = deviations(IMAGENET, ["made_anew", "tail"]).items()
    assert (rule, IMAGENET.read_text().splitlines()[line - 1].strip()) == ("tail", LOADER)


def test_a_mistake_that_comes_after_the_updates_observed_in_full() -> None:
    rules = {"training_mode": "loss = F.cross_entropy"}
    says = "4 of 12 updates are made in evaluation mode, from update 9 on"
    assert_named(IMAGENET, "left_in_eval_late", rules, says, processes=1, epochs=9)


def test_costly_hooks_are_registered_for_the_updates_observed_in_full(tmp_path: Path) -> None:
    """Those of the first update of an epoch too, as an evaluation may be in between."""
    record, registered = Record(str(tmp_path), 1, 1), set[int]()

    class Handle:
        def __init__(self) -> None:
            registered.add(id(self))

        def remove(self) -> None:
            registered.remove(id(self))

    record.add_costly_hook(Handle)
    found = []
    for update in range(40):
        if update == 20:
            record.register_hooks()
        if registered:
            found.append(update)
        record.end_update()
    assert found == [*range(8), 8, 16, 20, 32]
    record.keep_hooks()
    record.end_update()
    assert len(registered) == 1


def test_an_engine_like_deepspeeds() -> None:
    """It clips by default, evaluates in the mode of its network, and decays all parameters."""
    sgd = "optimizer = torch.optim.SGD([model.flat]"
    rules = {"momentum": sgd, "batchnorm_decay": sgd}
    assert_named(IMAGENET, "engine", rules, "shortened to norm 1", processes=1)


@pytest.mark.slow
def test_a_network_that_is_compiled_in_place() -> None:
    """No hook of modules is called, but its passes, updates and gradients are seen."""
    rules = {"gradient": BACKWARD, "training_mode": "loss = F.cross_entropy"}
    assert_named(
        IMAGENET, "compiled no_zero_grad left_in_eval", rules, "not set to zero", processes=1
    )


@pytest.mark.slow
def test_no_false_alarm_if_each_process_evaluates_the_remainder() -> None:
    """As pytorch/examples does: a sampler leaves it out, and a loader of a Subset has it."""
    assert_named(IMAGENET, "remainder", {}, "", processes=2)


@pytest.mark.slow
def test_no_false_alarm_if_the_padding_is_left_out_of_the_metric() -> None:
    assert_named(IMAGENET, "padded gathered", {}, "", processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["closures", "norm"])
def test_no_false_alarm_of_a_trainers_style(style: str) -> None:
    """Gradients that the optimizer's step computes, and a norm that is measured, not clipped."""
    assert_named(TRAINER, style, {}, "", processes=1)


@pytest.mark.slow
def test_four_processes() -> None:
    assert_named(IMAGENET, "-", {}, "", processes=4)


@pytest.mark.parametrize(("mistake", "rules", "says"), ONE, ids=lambda each: str(each)[:20])
def test_of_one_process(mistake: str, rules: dict[str, str], says: str) -> None:
    assert_named(IMAGENET, mistake, rules, says, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "rules", "says"), TWO, ids=lambda each: str(each)[:20])
def test_of_two_processes(mistake: str, rules: dict[str, str], says: str) -> None:
    assert_named(IMAGENET, mistake, rules, says, processes=2)


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "rules", "says"), OF_TRAINER, ids=lambda each: str(each)[:20])
def test_of_a_trainer(mistake: str, rules: dict[str, str], says: str) -> None:
    assert_named(TRAINER, mistake, rules, says, processes=1, epochs=9)


@pytest.mark.slow
@pytest.mark.parametrize(("style", "rules", "says"), STYLES, ids=lambda each: str(each)[:20])
def test_of_other_styles(style: str, rules: dict[str, str], says: str) -> None:
    """Several optimizers or networks, own loaders and samplers, and gradients that are changed."""
    assert_named(STYLED, style, rules, says, processes=1)


@pytest.mark.parametrize("style", ["sam", "sam_of_data", "lbfgs"])
def test_of_several_evaluations_of_the_gradient_the_last_counts(style: str) -> None:
    """Also in the updates that are not observed in full."""
    job = watched(STYLED, [style], 1, epochs=9)
    assert job.summary() == "13 updates seen, of 32 images = 1 process x 32 images"
    assert {*job.minibatch_sizes} == {32}
    [note] = notes(job, [])
    assert f"evaluated up to {3 if style == 'lbfgs' else 2} times for an update" in note


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_can_be_asked(paper: str) -> None:
    """A script with BN over 32 images and no LARS follows no paper of LARS."""
    job = _job()
    facts = observe(job)
    results = apply_script_rules(paper, replace(script_recipe(job), paper=paper), facts)
    broken = {each.rule for each in results if not each.is_followed}
    of_lars = ("lars2017", "nado2021", "nus", "fujitsu")
    assert ("lars" in broken) == (paper in of_lars)


@functools.cache
def _job():  # type: ignore[no-untyped-def]
    return watched(IMAGENET, [], 1)


def test_an_update_that_overflows_is_left_out() -> None:
    """The scaler of mixed precision skips it, and halves its scale, as every run of fp16 begins."""
    assert_named(IMAGENET, "overflow", {}, "", processes=1)


def test_it_ends_soon_after_the_second_epoch_has_begun() -> None:
    job = _job()
    assert job.updates == 6  # of 12
    assert UPDATES > 12
    assert job.summary() == "6 updates seen, of 32 images = 1 process x 32 images"
