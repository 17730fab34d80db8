"""The Kubernetes launcher: a job of Kubeflow or a JobSet, from its template beside this file."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.manifest import customize
from lsgd.launch.options import Request
from lsgd.launch.processes import GPUS
from lsgd.launch.quoting import kubernetes_command, yaml_text
from lsgd.override_syntax import PATH_FIELDS, last_text
from lsgd.paths import OWN_RECIPES, is_recipe_name

KINDS = {
    "mpijob": "MPIJob",
    "pytorchjob": "PyTorchJob",
    "trainjob": "TrainJob",
    "jobset": "JobSet",
}
"""The kinds of jobs, by the values of --kind."""
LABEL = 63
"""The maximum characters of a DNS label, such as the name of a pod that others look up."""


def longest_name(options: Mapping[str, str]) -> int:
    """Return the maximum length of a Kubernetes job's name, which the names of its pods extend."""
    nodes = int(options.get("--nodes", 1))
    if options["--kind"] in ("trainjob", "jobset"):
        # The Job of a JobSet adds its own name, and five characters to that of each pod.
        return LABEL - len(f"-node-0-{nodes - 1}-abcde")
    return LABEL - max(len("-launcher"), len(f"-worker-{nodes - 1}"))


def k8s(request: Request) -> LaunchCommand:
    """Return the kubectl command and manifest of a job of Kubeflow, or of a JobSet.

    Raises UsageError without a kind, an image and a claim, and for values that no pod can have.
    """
    options = request.options
    check_options(options)
    for key in PATH_FIELDS:
        if (path := last_text(request.overrides, key)) and path.startswith("~"):
            raise UsageError(
                f"{key}={path} begins with ~, the home folder of this machine, which no pod has; "
                "write a path inside the pods, such as /lsgd/… on the claim"
            )
    if advice := _recipe_advice(request.recipe):
        print(f"lsgd: {advice}", file=sys.stderr)
    kind, name = options["--kind"], _job_name(request)
    nodes, gpus = int(options.get("--nodes", 1)), int(options.get("--gpus", GPUS))
    if not request.run_dir:
        request = replace(request, overrides=[*request.overrides, f"run_dir=/lsgd/runs/{name}"])
    if kind == "mpijob":
        mpirun = ["mpirun", "--bind-to", "none", "--tag-output", "-np", str(nodes * gpus)]
        command = [*mpirun, "python3", *request.train_arguments]
    else:
        # torchrun reads the rendezvous and the number of pods from PET_*, which the operator sets,
        # or the manifest of a JobSet.
        logs = f"{request.run_dir}/logs"
        command = ["torchrun", "--log-dir", logs, "--tee", "3", *request.train_arguments]
    template = Path(__file__).with_name(f"{kind}.yaml").read_text(encoding="utf-8").rstrip("\n")
    [indent] = re.findall("^( *)resources:", template, re.M)
    fields = {
        "name": yaml_text(name),
        "host": yaml_text(f"{name}-node-0-0.{name}"),
        "image": yaml_text(options["--image"]),
        "claim": yaml_text(options["--claim"]),
        "nodes": str(nodes),
        "gpus": str(gpus),
        "workers": str(nodes - 1),
        "rdma": f', {yaml_text(rdma)}: "1"' if (rdma := options.get("--rdma")) else "",
        # To register memory with such a network card root needs this capability; another user needs
        # nodes without a limit of locked memory.
        "lock": f"\n{indent}securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}" if rdma else "",
        "command": kubernetes_command(command),
    }
    # In one pass, so that a value that looks like a field is not replaced.
    manifest = re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], template)
    manifest = customize(manifest, KINDS[kind], options)
    return LaunchCommand(
        request,
        nodes * gpus,
        ["kubectl", "create", "-f", "-"],
        "kubectl",
        "or save the output of --print and give it to the administrator of the cluster",
        manifest,
    )


def check_options(options: Mapping[str, str]) -> None:
    """Raise UsageError unless the options have the kind, the image and the claim of a job."""
    kind = options.get("--kind", "missing")
    if kind not in KINDS:
        raise UsageError(
            f"--kind is {kind}, but must be mpijob (Horovod), pytorchjob, trainjob or jobset "
            "(torch.distributed)"
        )
    if "--image" not in options:
        raise UsageError("--image is missing: the container image that has lsgd installed")
    if "--claim" not in options:
        raise UsageError(
            "--claim is missing: a PersistentVolumeClaim, so that a restarted job finds its run"
        )


def _recipe_advice(recipe: str) -> str:
    """Return what to do about a recipe that the pods do not see as this machine does, or ''."""
    from lsgd.recipe.own_files import find_own_file, is_path  # it reads the fields of a recipe

    path, found = os.path.normpath(os.path.join("/lsgd", recipe)), find_own_file(recipe)
    if is_path(recipe) and not path.startswith("/lsgd/"):
        return (
            f"recipe {recipe} is outside of /lsgd, so the pods have it only if the image has; copy "
            f"it to the claim and write /lsgd/{os.path.basename(recipe)}"
        )
    if is_path(recipe) and found and path != recipe:
        return f"the pods read recipe {recipe} as {path}; copy it there, onto the claim"
    if found and not is_recipe_name(recipe) and not is_path(recipe):
        return (
            f"recipe {recipe} is in the folder {OWN_RECIPES} of this machine, which no pod has; "
            f"copy {found} to the claim and write /lsgd/{found.name}"
        )
    return ""


def _job_name(request: Request) -> str:
    """Return the job's name in Kubernetes; raise UsageError for one that Kubernetes refuses."""
    # Names in Kubernetes have no underscores and no capitals.
    name = request.options.get("--name", request.job_name.lower().replace("_", "-"))
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise UsageError(
            f"--name is {name}, but must have only lower-case letters, digits and dashes, begin "
            "with a letter and not end in a dash"
        )
    suffix = "-check" if request.is_check else ""  # the run's own job may follow
    if len(name) > (most := longest_name(request.options) - len(suffix)):
        raise UsageError(
            f"--name is {name}, of {len(name)} characters, which would make pod names longer "
            f"than the {LABEL} that Kubernetes allows; write --name with {most} or fewer"
        )
    return name + suffix
