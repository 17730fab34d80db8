"""Compare one micro-batch of two workers with two of one, in networks of timm and torchvision.

    python -m benchmarks.library_networks scan.jsonl --each 3

Builds networks of every family of timm and all of torchvision, small ones first, in float64 at the
smallest image size that each takes. Compares the logits and the gradient of one micro-batch with
those of two. Each line of the file is a network: the reason why it was refused, or the largest
relative differences, which must be below 1e-9, and the decisions about its initialization and
weight decay. Networks that are already in the file are skipped, so a rerun resumes.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd import paths
from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.models.library_networks import check_library_network
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.sampler import MicroBatch
from lsgd.tables import markdown_table
from lsgd.vision import models
from lsgd.workloads.images import ImageClassification

N, CLASSES = 3, 7
"""The images of a worker, and the number of classes."""
SIZES = (64, 96, 128, 160, 192, 224, 240, 256, 288, 336, 384, 448)
SMALL = ("femto", "atto", "pico", "nano", "xxs", "xs", "tiny", "_t", "small", "_s", "mini", "18")
"""Substrings of the names of small networks, smallest first."""
CLOSE = 1e-9


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    line = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    line.add_argument("file", type=paths.parse_path)
    line.add_argument("--each", type=int, default=3, help="networks of each family of timm (3)")
    line.add_argument("--most", type=float, default=50, help="million parameters (50)")
    line.add_argument("--table", action="store_true", help="print what is in the file, as Markdown")
    options = line.parse_args(argv)
    rows: list[dict[str, Any]] = []
    if options.file.exists():
        rows = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
    if options.table:
        print(tables(rows))
        return 0
    done = {row["network"] for row in rows}
    for family, name, count in networks(options.each, options.most):
        if name in done:
            continue
        started = time.perf_counter()
        row = {"network": name, "family": family, "parameters": count} | examine(name)
        row["seconds"] = round(time.perf_counter() - started, 1)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
    return 0


def tables(rows: list[dict[str, Any]]) -> str:
    """Return Markdown tables of the refused, the inexact and all accepted networks."""
    rows = sorted(rows, key=lambda row: str(row["network"]))
    taken = [row for row in rows if "output" in row]
    far = [row for row in taken if max(row["output"], row["gradient"]) > CLOSE]
    refused = [
        [row["network"], str(row.get("size", "")), row.get("refused") or row["error"]]
        for row in rows
        if row not in taken
    ]
    apart = [[r["network"], f"{r['output']:.1g}", f"{r['gradient']:.1g}"] for r in far]
    decided = [
        [
            row["network"],
            f"{max(row['output'], row['gradient']):.0e}",
            f"{row['norms']}" + f", {row['rows']} of rows" * bool(row["rows"]),
            str(row["last_norms"]),
            str(row["undecayed"]),
            str(row["biases"]),
            str(row["decayed"]),
            ", ".join(f"`{name}`" for name in row["only_here"]),
        ]
        for row in taken
    ]
    head = [
        "network", "difference", "BN", "last norms", "do not decay", "biases", "decay",
        "and not in timm's groups",
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{len(rows)} networks: {len(taken)} taken, {len(far)} of them not to {CLOSE:g}",
            markdown_table(["network", "pixels", "refused"], refused),
            markdown_table(["network", "output", "gradient"], apart),
            markdown_table(head, decided),
        ]
    )


def networks(each: int, most: float) -> Iterator[tuple[str, str, int]]:
    """Yield the family, name and parameter count of each network to examine.

    Takes the smallest network of each family by name, then the second of each, and so on, with a
    share of torchvision's networks in every turn.
    """
    import timm

    families = {
        f"timm/{family}": _by_size([f"timm/{name}" for name in timm.list_models(module=family)])
        for family in timm.list_modules()
    }
    ours = _by_size([f"torchvision/{name}" for name in models.list_models(module=models)])
    share = -(-len(ours) // each)
    for turn in range(each):
        chosen = [
            (family, name) for family, found in families.items() for name in found[turn : turn + 1]
        ]
        chosen += [("torchvision", name) for name in ours[turn * share : (turn + 1) * share]]
        for family, name in chosen:
            if (count := _count(name)) <= most * 1e6:
                yield family, name, count


def _by_size(names: list[str]) -> list[str]:
    """Sort network names by the size that they suggest, smallest first."""

    def size(name: str) -> tuple[int, int, str]:
        small = next((i for i, word in enumerate(SMALL) if word in name), len(SMALL))
        numbers = re.findall(r"\d+", name.partition("_")[2] or name)
        return small, int((numbers or ["0"])[0]), name

    return sorted(names, key=size)


def _count(name: str) -> int:
    import timm

    library, _, own = name.partition("/")
    build: Any = timm.create_model if library == "timm" else models.get_model
    try:
        with torch.device("meta"):
            network = build(own)
    except (NotImplementedError, RuntimeError):
        network = build(own)
    return sum(parameter.numel() for parameter in network.parameters())


def examine(name: str) -> dict[str, Any]:
    """Return a network's row of the file, at the smallest image size that it takes."""
    refusal = ""
    for size in SIZES:
        overrides = [
            "+recipe=bs256", "data=tiny_imagenet", f"model={name}", f"data.image_size={size}",
            f"data.classes={CLASSES}", "precision=float64", "workers=2", f"worker_batch={N}",
        ]  # fmt: skip
        try:
            recipe = load_recipe(overrides)
            check_library_network(recipe)
            return {"size": size} | compare(recipe)
        except UsageError as error:
            refusal = str(error)
            # The refusal may be due to the image size, so the next size is tried.
            if "does not take images" not in refusal:
                return {"size": size, "refused": refusal}
        except Exception as error:
            return {"size": size, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"refused": refusal}


def compare(recipe: Recipe) -> dict[str, Any]:
    """Return the differences between one and two micro-batches, and the network's decisions."""
    size = recipe.data.image_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2 * N, 3, size, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (2 * N,), generator=generator)
    network, together, of_both = _passes(recipe, images, labels, [range(2)])
    _, apart, of_each = _passes(recipe, images, labels, [range(1), range(1, 2)])
    norms = worker_batch_norms(network)
    names = {parameter: name for name, parameter in network.named_parameters()}
    patterns = list(getattr(network, "no_weight_decay", tuple)())
    shaped = {n for n, p in network.named_parameters() if p.dim() <= 1 or n.endswith(".bias")}
    of_timm = shaped | {n for n in names.values() if any(fnmatch(n, each) for each in patterns)}
    still: set[str] = set(network.undecayed)  # type: ignore[arg-type]
    biases = {n for n in names.values() if "bias" in n.rpartition(".")[2]} - still
    return {
        "output": _far(together, apart),
        "gradient": max(map(_far, of_both, of_each)),
        "norms": len(norms),
        "rows": sum(n.rows_per_image > 1 for n in norms),
        "last_norms": len(network.last_norms),  # type: ignore[arg-type]
        "undecayed": len(still),
        "biases": len(biases),
        "decayed": len(names) - len(still) - len(biases),
        "only_here": _kinds(still - of_timm),
        "only_timm": _kinds(of_timm - still - biases),
    }


def _passes(
    recipe: Recipe, images: Tensor, labels: Tensor, passes: list[range]
) -> tuple[nn.Module, Tensor, list[Tensor]]:
    """Return the network, its logits and its gradient over micro-batches of these workers."""
    workload = ImageClassification(recipe, torch.device("cpu"))
    network = workload.network().train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():  # zeros would hide differences
                parameter.uniform_(0.1, 0.5, generator=generator)
    parts = workload.carried_states(network, range(2), SingleComm())
    logits = images.new_empty(len(images), CLASSES)
    for workers in passes:
        own = np.array([i for i in range(2 * N) if i % 2 in workers])
        for part in parts:
            part.start_micro_batch(MicroBatch(0, own, workers, 0, "train"))
        output = network(images[own])
        F.cross_entropy(output, labels[own], reduction="sum").backward()
        logits[own] = output.detach()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    largest = max(gradient.abs().max() for gradient in gradients)
    return network, logits, [gradient / largest for gradient in gradients]


def _far(one: Tensor, other: Tensor) -> float:
    scale = max(1.0, float(other.abs().max()))
    return float((one - other).abs().max()) / scale


def _kinds(names: set[str]) -> list[str]:
    """Return up to 8 distinct parameter names, with layer numbers replaced by `*`."""
    kinds = {".".join("*" if part.isdigit() else part for part in n.split(".")) for n in names}
    return sorted(kinds)[:8]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
