import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lsgd.errors import UsageError
from lsgd.job import device
from lsgd.job.device import (
    choose_kernels,
    cpu,
    device_name,
    preset,
    restore_process_settings,
    run_compiled_modules_eagerly,
    use_torch_defaults,
)
from lsgd.job.launcher import cores, detect_launch

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def flags() -> Iterator[None]:
    """Put back afterwards what kernels this process takes."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul.allow_tf32
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    yield
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
    torch.backends.cuda.matmul.allow_tf32 = products


def kernels() -> tuple[bool, bool, bool, bool]:
    """Whether convolutions and products round, whether they repeat and whether they are timed."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul.allow_tf32
    return cudnn.allow_tf32, products, cudnn.deterministic, cudnn.benchmark


def of_capability(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "the GPU")


@pytest.mark.usefixtures("flags")
def test_float32_is_float32_and_a_run_repeats_unless_words_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_kernels(CPU, precision="float32", deterministic=True)
    assert kernels() == (False, False, True, False)
    of_capability(monkeypatch, 8, 0)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "")  # put back afterwards
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    choose_kernels(GPU, precision="tf32", deterministic=False)
    assert kernels() == (True, True, False, True)
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == str(cores(detect_launch()))


@pytest.mark.usefixtures("flags")
def test_hardware_without_tf32_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"GPUs from A100 on, and this run is on .* cores"):
        choose_kernels(CPU, precision="tf32", deterministic=True)
    of_capability(monkeypatch, 7, 5)
    with pytest.raises(UsageError, match="on the GPU; write precision=float32"):
        choose_kernels(GPU, precision="tf32", deterministic=True)


@pytest.mark.parametrize(
    ("capability", "name"),
    [((6, 1), "v100"), ((7, 5), "v100"), ((8, 0), "a100"), ((8, 9), "a100"), ((10, 0), "h200")],
)
def test_a_gpu_has_the_preset_of_the_one_before_it(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_capability(monkeypatch, *capability)
    assert preset(GPU) == name
    assert preset(CPU) == "cpu"


def test_a_cpu_is_told_by_its_model_and_cores() -> None:
    name = device_name(torch.device("cpu"))
    assert name.startswith(f"{cpu()}, ")
    assert f"cores, threads per process: {torch.get_num_threads()}" in name


def test_contexts_that_overlap_leave_the_compilers_stance_as_it_was() -> None:
    """As evaluations in two threads: the first to end put back what the other had set, for good."""
    from torch._dynamo import eval_frame

    before = eval_frame._stance.stance
    first, second = run_compiled_modules_eagerly(), run_compiled_modules_eagerly()
    for context in (first, second):
        context.__enter__()
    first.__exit__(None, None, None)
    assert eval_frame._stance.stance == "force_eager"
    second.__exit__(None, None, None)
    assert (eval_frame._stance.stance, before) == ("default", "default")


def test_a_thread_waits_for_the_device_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its current device is 0, whatever its process uses."""
    waited: list[torch.device] = []
    monkeypatch.setattr(device, "_module", lambda _: SimpleNamespace(synchronize=waited.append))
    device.synchronize(torch.device("cuda", 2))
    device.synchronize(CPU)
    assert waited == [torch.device("cuda", 2)]


def test_a_training_is_shielded_from_the_settings_of_its_host() -> None:
    """They gave wrong numbers, or an error in the first backward pass."""

    def state() -> list[object]:
        autocast = torch.is_autocast_enabled("cpu"), torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        gradients = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return [*autocast, *gradients, torch.get_default_dtype(), torch.get_default_device().type]

    plain = [False, 0, True, False, torch.float32, "cpu"]
    assert state() == plain
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu"), torch.inference_mode(), torch.device("meta"):
            of_host = state()
            with use_torch_defaults():
                assert state() == plain
            with pytest.raises(RuntimeError, match="failed"), use_torch_defaults():
                raise RuntimeError("failed")
            assert state() == of_host
    finally:
        torch.set_default_dtype(torch.float32)
    assert state() == plain


def test_a_training_in_a_thread_leaves_the_random_numbers_of_its_host() -> None:
    """The host drew the same numbers again after the end of the training."""

    def draws() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    context = restore_process_settings()
    with ThreadPoolExecutor(1) as pool:
        for in_thread in (True, False):
            pool.submit(context.__enter__).result() if in_thread else context.__enter__()
            first = draws()
            context.__exit__(None, None, None)
            assert (draws() == first) is not in_thread
