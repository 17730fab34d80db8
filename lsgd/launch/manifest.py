"""Manifests of Kubernetes with a cluster's own values, from options and from a patch file.

Both are merged into a manifest by name, as kubectl merges a strategic patch.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from lsgd.errors import UsageError
from lsgd.launch.options import MANIFEST_OPTIONS
from lsgd.launch.quoting import WIDTH, yaml_text
from lsgd.paths import local_path

KEYS = ("mountPath", "name")
"""The keys by which Kubernetes tells apart the items of a list, such as mounts or containers.

A mount is told by its path, since one volume may have several mounts.
"""
EVERY = "*"
"""The name of an item of a patch that is merged into every item of the manifest's list."""
POD = "Pod"
"""The kind of a patch that is merged into all pods of a manifest."""
GPU = "nvidia.com/gpu"
"""The resource whose number --gpus sets."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue queues a job."""


def customize(text: str, kind: str, options: Mapping[str, str]) -> str:
    """Return a manifest with the values of these options and of the file of --patch.

    `kind` is that of the job; other documents belong to it. A manifest without such values stays as
    it is. Raises UsageError for a value that does not fit.
    """
    if not options.keys() & {*MANIFEST_OPTIONS}:
        return text
    # As JSON, in which what YAML calls aliases are copies.
    documents = json.loads(json.dumps([*yaml.safe_load_all(text)]))
    [job] = [document for document in documents if document["kind"] == kind]
    for document in documents if "--namespace" in options else ():
        document["metadata"]["namespace"] = options["--namespace"]
    if "--queue" in options:
        _merge(job, {"metadata": {"labels": {QUEUE: options["--queue"]}}})
    if "--ttl" in options:
        ttl: dict[str, Any] = {"ttlSecondsAfterFinished": int(options["--ttl"])}
        if kind == "TrainJob":
            raise UsageError(
                "--ttl has no field in a TrainJob of Kubeflow Trainer; leave it out, or write "
                "--kind jobset"
            )
        _merge(job, {"spec": ttl if kind == "JobSet" else {"runPolicy": ttl}})
    for template in pod_templates(documents):
        _merge(template, {"spec": _pod_spec(options)})
        for container in template["spec"]["containers"]:
            # The launcher of an MPIJob has none: it trains nothing.
            if "resources" in container:
                _merge(container, {"resources": _resources(options)})
    for patch in _read_patches(options):
        _apply(patch, documents, kind)
    dumped: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True
    )
    return dumped.rstrip("\n")


def _pod_spec(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that all pods have as a part of a pod's spec."""
    # Kubernetes takes $(NAME) in a value for a variable, and two dollar signs for one.
    env = [
        {"name": name, "value": value.replace("$", "$$")}
        for name, value in _variables(options.get("--env", ""))
    ]
    sources = [{"secretRef": {"name": name}} for name in _names(options.get("--secret", ""))]
    container: dict[str, Any] = {"env": env, "envFrom": sources}
    spec: dict[str, Any] = {
        "containers": [{"name": EVERY, **_given(container)}],
        "imagePullSecrets": [{"name": name} for name in _names(options.get("--pull-secret", ""))],
        "nodeSelector": dict(_pairs(options.get("--node-selector", ""))),
        "tolerations": [_toleration(each) for each in _names(options.get("--tolerate", ""))],
    }
    return _given(spec)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _resources(options: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found = {key: dict(_pairs(options.get(f"--{key}", ""))) for key in ("requests", "limits")}
    for key, sizes in found.items():
        if GPU in sizes:
            raise UsageError(
                f"--{key} {GPU}={sizes[GPU]} contradicts --gpus, the number of GPUs and processes "
                f"of each pod; write --gpus {sizes[GPU]}"
            )
    for name, limit in found["limits"].items():
        request = found["requests"].get(name, limit)
        if _amount(request) > _amount(limit):
            raise UsageError(
                f"--requests {name}={request} is above --limits {name}={limit}; write a limit as "
                "large as the request, or leave it out"
            )
        if "/" in name and _amount(request) != _amount(limit):  # an extended resource, of a device
            raise UsageError(
                f"--requests {name}={request} is another amount than --limits {name}={limit}, and "
                "Kubernetes takes one for a resource with a slash; write the same, or leave one out"
            )
    return _given(found)


def _amount(quantity: str) -> Fraction:
    """Convert a Kubernetes quantity, such as 500m or 2Ki, to a number.

    >>> _amount("500m") == Fraction("0.5"), _amount("2Ki"), _amount("1.5k")
    (True, Fraction(2048, 1), Fraction(1500, 1))
    """
    number = quantity.rstrip("numkKMGTPEi")
    unit = quantity[len(number) :]
    power = "num kMGTPE".index(unit[:1].replace("K", "k") or " ") - 3
    return Fraction(number) * Fraction(1024 if unit.endswith("i") else 1000) ** power


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split labels or resources, whose values have no commas, into names and values.

    >>> _pairs("pool=h100,3d=no")
    [('pool', 'h100'), ('3d', 'no')]
    """
    return [(name, value) for name, _, value in (part.partition("=") for part in _names(text))]


def _variables(text: str) -> list[tuple[str, str]]:
    """Split `A=1,B=x,y` at the commas that are followed by another name with an equals sign.

    >>> _variables("A=1,B=x,y")
    [('A', '1'), ('B', 'x,y')]
    """
    parts = re.split(r",(?=[A-Za-z_][A-Za-z0-9_.-]*=)", text) if text else []
    return [(name, value) for name, _, value in (part.partition("=") for part in parts)]


def _toleration(text: str) -> dict[str, str]:
    """Return the toleration that `KEY=VALUE:EFFECT` names; value and effect may be left out.

    >>> _toleration("nvidia.com/gpu"), _toleration("a=b:NoSchedule")["value"]
    ({'key': 'nvidia.com/gpu', 'operator': 'Exists'}, 'b')
    """
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    found = {"key": key, "operator": "Equal" if equals else "Exists"}
    return found | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})


def _read_patches(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the documents of the file of --patch; raise UsageError unless they are mappings."""
    if "--patch" not in options:
        return []
    name = options["--patch"]
    try:
        text = Path(local_path(name)).read_text(encoding="utf-8")
        found = [*yaml.load_all(text, Loader=_Loader)]
    except OSError as error:
        raise UsageError(f"--patch {name} cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())
        raise UsageError(f"--patch {name} is not YAML ({line}); correct it") from None
    # As of a file that ends in ---.
    found = [document for document in found if document is not None]
    for document in found:
        if not isinstance(document, dict):
            raise UsageError(
                f"--patch {name} has a document that is not a mapping; write fields of the "
                "manifest, such as spec:"
            )
    return found


def _apply(patch: dict[str, Any], documents: list[dict[str, Any]], kind: str) -> None:
    """Merge a patch into the document of its kind, or into all pods if it is of kind Pod."""
    target = patch.get("kind", kind)
    known = [document["kind"] for document in documents]
    if target == POD:
        for template in pod_templates(documents):
            _merge(template, {key: patch[key] for key in ("metadata", "spec") if key in patch})
    elif target in known:
        _merge(documents[known.index(target)], patch)
    else:
        raise UsageError(
            f"--patch is of kind {target}, which this manifest does not have; write kind: "
            f"{' or '.join([*known, POD])}"
        )


def pod_templates(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod templates in a part of a manifest: what has a spec with containers."""
    if isinstance(part, list):
        for item in part:
            yield from pod_templates(item)
    elif isinstance(part, dict):
        if isinstance(spec := part.get("spec"), dict) and "containers" in spec:
            yield part
        else:
            yield from pod_templates([*part.values()])


def _merge(base: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Merge a copy of a patch into a mapping of a manifest; null removes a field.

    A copy, since a patch of several pods must leave them nothing in common that a later one changes
    in one of them.
    """
    for key, value in patch.items():
        there = base.get(key)
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value)
        elif isinstance(value, list) and isinstance(there, list):
            _merge_lists(there, value)
        elif isinstance(value, list):
            # The name that means every item names none of a list that does not exist.
            base[key] = [deepcopy(item) for item in value if _identity(item) != ("name", EVERY)]
        else:
            base[key] = deepcopy(value)


def _merge_lists(items: list[Any], patch: list[Any]) -> None:
    """Merge the items of a patch's list into those of the same name, or append them.

    A list without mappings, such as a command, is replaced.
    """
    if not any(isinstance(item, dict) for item in (*items, *patch)):
        items[:] = patch
        return
    for item in patch:
        identity = _identity(item)
        if identity == ("name", EVERY):
            for each in items:
                _merge(each, {key: value for key, value in item.items() if key != "name"})
            continue
        same = [each for each in items if identity and _identity(each) == identity]
        if same:
            _merge(same[0], item)
        elif item not in items:
            items.append(deepcopy(item))


def _identity(item: Any) -> tuple[str, Any] | None:
    """Return the key and value that tell an item of a list from the others, or None without."""
    if not isinstance(item, dict):
        return None
    return next(((key, item[key]) for key in KEYS if key in item), None)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A YAML loader that reads plain texts and numbers as Go's does, which kubectl reads with.

    12:30 is no number to the base 60, 2026-11-29 no date, 0o7 and 1e3 are numbers.
    """


_Loader.yaml_implicit_resolvers = {
    first: [form for form in forms if re.search(":(null|bool|merge)$", form[0])]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _type, _form in (
    ("int", "0b[01][01_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*|0[0-7_]*|[1-9][0-9_]*"),
    ("float", r"([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF)"),
    ("float", r"\.(nan|NaN|NAN)"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_type}", re.compile(f"[-+]?({_form})$"), [*"-+.0123456789"]
    )


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """A YAML dumper that quotes each text which some reader of YAML takes for another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if yaml_text(text) == text else '"'
    )


_Dumper.add_representer(str, _represent_text)
