"""The kernels that torch.compile makes of per-worker BN for an H200, and what they read and write.

    python results/2026-11-23-bn-kernels/generated.py            # all layers of ResNet-50
    python results/2026-11-23-bn-kernels/generated.py --of FILE  # of another rules/batchnorm.py

No GPU is needed, and none is used: torch for CUDA and triton are, whose answers about a device are
replaced. A kernel is counted with each tensor that it is given, once; `passes` are those as large
as the images. Passes of 8 workers of 32 images, bfloat16, channels_last.
"""

import argparse
import importlib.util
import json
import math
import re
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import torch._inductor.config as inductor
import torch._inductor.scheduler as scheduler
import torch.utils._triton as triton
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._mode_utils import no_dispatch

IMAGES, WORKERS = 32, 8
# Channels and side of what ResNet-50's BN layers normalise at 224 pixels, and how many layers.
LAYERS = {
    (64, 112): 1, (64, 56): 6, (256, 56): 4, (128, 56): 1, (128, 28): 7, (512, 28): 5,
    (256, 28): 1, (256, 14): 11, (1024, 14): 7, (512, 14): 1, (512, 7): 5, (2048, 7): 4,
}  # fmt: skip
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, total_memory=150 * 2**30, multi_processor_count=132,
    warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
    gcnArchName="", max_threads_per_block=1024, shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=60 * 2**20,
)  # fmt: skip


@contextmanager
def pretended_gpu():
    """Meanwhile torch takes this machine for one with an H200."""
    stream = SimpleNamespace(
        device=torch.device("cuda", 0), stream_id=0, cuda_stream=0, device_index=0, device_type=1
    )
    none, zero = (lambda *a, **k: None), (lambda *a, **k: 0)
    answers = [
        *((torch.cuda, name, zero) for name in ("current_device", "_exchange_device",
                                                "_maybe_exchange_device")),
        *((torch.cuda, name, none) for name in ("_lazy_init", "synchronize", "set_device",
                                                "set_rng_state")),
        *((torch._C, name, zero) for name in ("_accelerator_getDeviceIndex", "_cuda_getDevice",
                                              "_cuda_getCurrentRawStream")),
        *((CudaInterface, name, staticmethod(zero)) for name in (
            "current_device", "exchange_device", "maybe_exchange_device", "get_raw_stream")),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "get_device_properties", lambda *a: H200),
        (torch.cuda, "_get_device_properties", lambda *a: H200),
        (torch.cuda, "get_device_capability", lambda *a: (9, 0)),
        (torch.cuda, "is_bf16_supported", lambda *a, **k: True),
        (torch.cuda, "get_rng_state", lambda *a: torch.empty(0, dtype=torch.uint8)),
        (torch.cuda.random, "_lazy_init", none),
        (torch._subclasses.fake_tensor, "init_gpu_context", none),
        (CudaInterface.Worker, "get_device_properties", staticmethod(lambda *a: H200)),
        (CudaInterface, "is_available", staticmethod(lambda: True)),
        (CudaInterface, "get_compute_capability", staticmethod(lambda *a: 90)),
        (CudaInterface, "synchronize", staticmethod(none)),
        (torch._C, "_cuda_isCurrentStreamCapturing", lambda: False),
        (torch._C, "_accelerator_setDeviceIndex", none),
        (torch.accelerator, "current_device_index", zero),
        (torch.accelerator, "set_device_index", none),
        (torch.accelerator, "current_stream", lambda *a: stream),
        (scheduler, "has_triton", lambda *a: True),
        (triton, "has_triton", lambda *a: True),
        (triton, "triton_hash_with_backend", lambda *a: "x"),
        (triton, "has_triton_tma_device", lambda *a: False),
        (triton, "has_triton_tensor_descriptor_host_tma", lambda *a: False),
    ]  # fmt: skip
    with ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer, create=True))
        yield


def graphs_of(function, *arguments, dynamic):
    """The forward graph of a function, and the backward one if it has gradients."""
    found = []

    def keep(kind):
        def compiler(module, _):
            inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
            found.append((kind, module, inputs))
            return module.forward

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"),
        bw_compiler=keep("backward"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    torch.compile(function, dynamic=dynamic, backend=backend)(*arguments)
    return found


def code_of(kind, module, inputs):
    """What torch writes for a graph, as text."""
    written = []

    def stop(self):
        wrapper, _ = self.codegen()
        written.append(wrapper.value)
        raise InterruptedError

    mode = next(value.fake_mode for value in inputs if isinstance(value, FakeTensor))
    on_gpu = []
    for value in inputs:
        if isinstance(value, FakeTensor):
            with no_dispatch():
                size, stride = value.size(), value.stride()
                meta = torch.empty_strided(size, stride, dtype=value.dtype, device="meta")
            on_gpu.append(FakeTensor(mode, meta, torch.device("cuda", 0)))
        else:
            on_gpu.append(value)
    stopped = mock.patch.object(GraphLowering, "compile_to_module", stop)
    with pretended_gpu(), stopped, torch.no_grad(), V.set_fake_mode(mode):
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*on_gpu)
        try:
            compile_fx_inner(module, on_gpu, is_backward=kind == "backward", graph_id=0)
        except Exception:
            if not written:
                raise
    return written[0]


def numel(shape):
    """The numbers in a tensor of this shape, as the code has it."""
    return math.prod(int(side) for side in shape.split(",") if side.strip())


def kernels(code, whole):
    """Of each kernel that is called its name, and the bytes of each tensor that it is given, with
    whether that is as large as the images.
    """
    sizes, called = {}, []
    for line in code[code.index("def call(") :].splitlines():
        if found := re.search(r"assert_size_stride\((\w+), \((.*?)\)", line):
            count = numel(found[2])
            sizes[found[1]] = count, 2 if count == whole else 4
        if found := re.search(r"(\w+) = empty_strided_cuda\(\((.*?)\), .*torch\.(\w+)\)", line):
            sizes[found[1]] = numel(found[2]), {"bfloat16": 2, "float32": 4}[found[3]]
        renamed = re.search(r"(\w+) = (?:reinterpret_tensor\()?(\w+)\b.*(?:reuse|del)", line)
        if renamed and renamed[2] in sizes:
            sizes[renamed[1]] = sizes[renamed[2]]
        if found := re.search(r"(triton_\w+)\.run\((.*?), stream", line):
            given = [sizes[name.strip()] for name in found[2].split(",") if name.strip() in sizes]
            called.append((found[1], [(count * width, count == whole) for count, width in given]))
    return called


def layer(rules, channels, side):
    """The kernels of a layer, forward and backward."""
    shape = (IMAGES * WORKERS, channels, side, side)
    images = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    images = images.contiguous(memory_format=torch.channels_last)
    vector = torch.empty(channels, device="meta")
    if hasattr(rules, "_backward"):
        statistics = torch.empty(1, WORKERS, 1, channels, device="meta")
        graphs = graphs_of(rules._forward, images, vector, vector, WORKERS, 1e-5, dynamic=False)
        parts = torch.empty_like(images), images, vector, statistics, torch.empty_like(statistics)
        (backward,) = graphs_of(rules._backward, *parts, dynamic=False)
        graphs.append(("backward", *backward[1:]))
    else:
        images.requires_grad_()
        scale, shift = (torch.empty(channels, 1, 1, device="meta").requires_grad_() for _ in "ab")
        graphs = graphs_of(rules._expression, images, WORKERS, scale, shift, 1e-5, dynamic=False)
    whole = math.prod(shape)
    found = {}
    for kind, module, inputs in graphs:
        calls = kernels(code_of(kind, module, inputs), whole)
        found[kind] = {
            "kernels": len(calls),
            "passes": sum(large for _, given in calls for _, large in given),
            "bytes_per_image": sum(size for _, given in calls for size, _ in given)
            / (IMAGES * WORKERS),
        }
    return found


def main():
    """The table of all layers, or with --layer the numbers of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "lsgd/rules/batchnorm.py"
    parser.add_argument("--of", type=Path, default=default)
    parser.add_argument("--layer", type=int, nargs=2, help="channels and side of one layer")
    options = parser.parse_args()
    if options.layer:
        sys.path.insert(0, str(default.parents[2]))
        inductor.compile_threads = 1
        inductor.fx_graph_cache = False
        torch._functorch.config.enable_autograd_cache = False
        torch._functorch.config.force_non_lazy_backward_lowering = True
        spec = importlib.util.spec_from_file_location("rules_of_bn", options.of)
        rules = importlib.util.module_from_spec(spec)
        sys.modules["rules_of_bn"] = rules
        spec.loader.exec_module(rules)
        print(json.dumps(layer(rules, *options.layer)))
        return
    total = Counter()
    print("| channels, side | layers | kernels | passes over the images | MB per image |")
    print("|---|---|---|---|---|")
    for (channels, side), count in LAYERS.items():
        # A process of its own, as torch keeps what it has found out about shapes.
        command = [sys.executable, __file__, "--of", options.of, "--layer", channels, side]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
        ways = json.loads(done.stdout.splitlines()[-1]).values()
        row = Counter()
        for way in ways:
            row.update(way)
        total.update({key: count * value for key, value in row.items()})
        megabytes = row["bytes_per_image"] / 1e6
        counts = f"{count} | {row['kernels']} | {row['passes']}"
        print(f"| {channels}, {side} | {counts} | {megabytes:.2f} |")
    kernels_, megabytes = total["kernels"], total["bytes_per_image"] / 1e6
    print(f"| all | {sum(LAYERS.values())} | {kernels_} | | {megabytes:.1f} |")


if __name__ == "__main__":
    main()
