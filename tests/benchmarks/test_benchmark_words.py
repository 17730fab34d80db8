"""Words that a benchmark of lsgd's own speed cannot use are refused before anything is measured."""

from types import ModuleType

import pytest
from helpers.usage_errors import usage_error

import benchmarks.gpu.__main__ as gpu
from benchmarks import (
    batchnorm,
    comm,
    fold,
    lars,
    live,
    memory,
    padding,
    roofline,
    startup,
    step,
    strategies,
)  # fmt: skip
from lsgd.job.launcher import Launch

DIGITS = "+recipe=digits device=cpu"
SST, CONLL, LENET = "+recipe=sst_treelstm", "+recipe=conll_bilstm", "+recipe=fashion_lenet5"


@pytest.mark.parametrize(
    ("benchmark", "words", "message"),
    [
        (step, f"{DIGITS} --rounds 5", "--rounds 5 is too few"),
        (step, f"{DIGITS} optim.equation=10", "optim.equation=10 is not PyTorch's"),
        (step, f"{DIGITS} optim=adam", "write optim.name=sgd"),
        (step, f"{DIGITS} optim.clip_norm=1", "write optim.clip_norm=null"),
        (step, f"{DIGITS} channels_last=auto", "channels_last=auto is decided where training"),
        (batchnorm, f"{DIGITS} --steps 0", "--steps 0 is not possible"),
        (batchnorm, f"{DIGITS} workers_per_pass=1", "workers_per_pass=1 leaves one worker"),
        (lars, DIGITS, "optim.name=sgd is not LARS; write optim=lars"),
        (memory, f"{DIGITS} --passes 1", "--passes 1 leaves nothing to compare"),
        (memory, f"{DIGITS} --limit 0", "--limit: 0 is not a number of seconds from 1e-9"),
        (roofline, f"{DIGITS} compile=true", "compile=true fuses the operators that are measured"),
        (startup, "--rounds 5", "--rounds 5 is too few"),
        (startup, "+recipe=digits", "'+recipe=digits' has no meaning here; see --help"),
        (comm, "", "no recipe is given"),
        (comm, f"{DIGITS} --np 2;4", "--np 2;4 is not a list of numbers of 2 or more"),
        (comm, f"{DIGITS} --over mpi", "--over mpi is no library; write torch, horovod"),
        (comm, f"{DIGITS} gradient_compression=fp16", "gradient_compression=fp16 would make"),
        (comm, f"{DIGITS} compile=true", "compile=true is not for this benchmark"),
        (comm, f"{DIGITS} --out .", "--out . exists already"),
        (fold, "+recipe=digits", "benchmarks.fold supports only data.workload=trees, and"),
        (fold, "+recipe=sst_childsum", "TorchFold cannot run model=childsum"),
        (fold, f"{SST} --sizes 0", "--sizes 0 is not a list of numbers of 1 or more"),
        (fold, f"{SST} --trees 0", "--trees: 0 is not a whole number of 1 or more"),
        (fold, f"{SST} --rounds 3", "--rounds 3 is too few"),
        (padding, "+recipe=digits", "supports only data.workload=tagging, and digits has"),
        (padding, "+recipe=conll_bilstm_crf", "model=bilstm_crf is there in torch alone"),
        (padding, f"{CONLL} --batches 0", "--batches 0 is not a list of numbers of 1 or more"),
        (padding, f"{CONLL} --rounds 3", "--rounds 3 is too few"),
        (strategies, f"{CONLL}", "benchmarks.strategies supports only data.workload=images"),
        (strategies, "+recipe=digits", "model=small_resnet on images of 1 channels is not there"),
        (strategies, f"{LENET} --rounds 0", "--rounds: 0 is not a whole number of 1 or more"),
        (live, "strategy=backup", "strategy=backup is no word of this benchmark"),
        (live, "cluster.overhead_us=35", "cluster.overhead_us=35 is not emulated"),
        (gpu, "step-9", "there is no slice 'step-9'; did you mean step-"),
        (gpu, "--limit -1", "-1 is not a number of minutes, 0 or more"),
    ],
)
def test_they_are_refused(
    benchmark: ModuleType, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(benchmark.main, capsys, *words.split())


def test_the_steps_of_one_process_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "lsgd.bench.setting.detect_launch", lambda: Launch("torchrun", world_size=2)
    )
    said = usage_error(step.main, capsys, *DIGITS.split())
    assert "torchrun started 2 processes, and the steps of one are measured; start it" in said
