"""One Kubeflow job: an MPIJob (v1) or a PyTorchJob, from its template beside this file."""

import json
import re
from dataclasses import replace
from pathlib import Path

from lsgd.errors import Refused
from lsgd.launch.options import Request
from lsgd.launch.processes import GPUS
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
    nodes, gpus = int(options.get("--nodes", 1)), int(options.get("--gpus", GPUS))
    if kind == "mpijob":
        mpirun = ["mpirun", "--bind-to", "none", "--tag-output", "-np", str(nodes * gpus)]
        command = [*mpirun, "python3", *request.train]
    else:
        # Where to meet and how many pods there are it reads from PET_*, which the operator sets.
        logs = f"{request.run_dir}/logs"
        command = ["torchrun", "--log-dir", logs, "--tee", "3", *request.train]
    fields = {
        "name": name,
        "image": options["--image"],
        "claim": options["--claim"],
        "nodes": str(nodes),
        "gpus": str(gpus),
        "workers": str(nodes - 1),
        "rdma": f', {rdma}: "1"' if (rdma := options.get("--rdma")) else "",
        # Which the registration of memory with such a card needs.
        "lock": f"\n{' ' * 14}securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}"
        if rdma
        else "",
        # Kubernetes would take $(NAME) for a variable.
        "command": json.dumps(command, ensure_ascii=False).replace("$(", "$$("),
    }
    manifest = Path(__file__).with_name(f"{kind}.yaml").read_text(encoding="utf-8").rstrip("\n")
    for field, value in fields.items():
        manifest = manifest.replace("{{" + field + "}}", value)
    return Start(
        request,
        nodes * gpus,
        ["kubectl", "create", "-f", "-"],
        "kubectl",
        "or save what --print shows and give it to whoever runs the cluster",
        manifest,
    )
