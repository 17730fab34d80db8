"""One Kubeflow job: an MPIJob (v1) or a PyTorchJob, from its template beside this file."""

import json
import re
from dataclasses import replace
from pathlib import Path

from lsgd.errors import Refused
from lsgd.launch.options import Request
from lsgd.launch.processes import GPUS, count_processes, python
from lsgd.launch.start import Start


def k8s(request: Request) -> Start:
    """The job; raises Refused without a kind, an image and a claim."""
    options = request.options
    kind = options.get("--kind", "missing")
    if kind not in ("mpijob", "pytorchjob"):
        raise Refused(
            f"--kind is {kind}, but must be mpijob (Horovod) or pytorchjob (torch.distributed)"
        )
    if "--image" not in options:
        raise Refused("--image is missing: the container image that has lsgd installed")
    if "--claim" not in options:
        raise Refused(
            "--claim is missing: a PersistentVolumeClaim, so that a restarted job finds its run"
        )
    # Kubernetes' names have no underscores and no capitals.
    name = options.get("--name", request.recipe.lower().replace("_", "-"))
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise Refused(f"--name is {name}, but must be of small letters, digits and dashes")
    if not request.run_dir:
        request = replace(request, words=[*request.words, f"run_dir=/lsgd/runs/{name}"])
    nodes = int(options.get("--nodes", 1))
    fields = {
        "name": name,
        "image": options["--image"],
        "claim": options["--claim"],
        "nodes": str(nodes),
        "gpus": options.get("--gpus", str(GPUS)),
        "workers": str(nodes - 1),
        # Kubernetes would take $(NAME) for a variable.
        "command": json.dumps(_command(kind, request), ensure_ascii=False).replace("$(", "$$("),
    }
    manifest = Path(__file__).with_name(f"{kind}.yaml").read_text(encoding="utf-8").rstrip("\n")
    for field, value in fields.items():
        manifest = manifest.replace("{{" + field + "}}", value)
    return Start(
        request,
        count_processes("k8s", options),
        ["kubectl", "create", "-f", "-"],
        "kubectl",
        "or save what --print shows and give it to whoever runs the cluster",
        manifest,
    )


def _command(kind: str, request: Request) -> list[str]:
    if kind == "mpijob":
        processes = count_processes("k8s", request.options)
        start = ["mpirun", "--bind-to", "none", "--tag-output", "-np", str(processes)]
        return [*start, python(request.options), *request.train]
    # Where to meet and how many pods there are it reads from PET_*, which the operator sets.
    return ["torchrun", "--log-dir", f"{request.run_dir}/logs", "--tee", "3", *request.train]
