"""The checks of the datasets: where each is expected, and whether it is complete."""

import os
from collections.abc import Mapping

from lsgd.doctor import ABSENT, FAIL, PASS, CheckItem, ProbeResult
from lsgd.errors import UsageError
from lsgd.paths import local_path


def datasets(answer: ProbeResult, environment: Mapping[str, str] = os.environ) -> list[CheckItem]:
    """Return the check results of all datasets, after that of the folder LSGD_DATA, if set.

    If LSGD_DATA cannot be a folder, as a URL, its result is the only one.
    """
    facts = answer.facts.get("datasets", [])
    items = [_dataset(**each) for each in facts]
    if answer.failure_reason:
        after = f" after {facts[-1]['name']}" if facts else ""
        fix = "fetch the dataset at which it stopped again, or see recipes above"
        items.append(
            CheckItem("data", FAIL, f"reading stopped{after}: {answer.failure_reason}", fix)
        )
    if not (text := environment.get("LSGD_DATA")):
        return items
    try:
        root = local_path(text)
    except UsageError as refused:
        found, _, fix = str(refused).partition("; ")
        return [CheckItem("LSGD_DATA", FAIL, found, fix)]
    return [_data_folder(root, [each["name"] for each in facts if each["there"]]), *items]


def _data_folder(root: str, names: list[str]) -> CheckItem:
    if names:
        return CheckItem("LSGD_DATA", PASS, f"{root} has {', '.join(names)}")
    kind = "has no dataset in it" if os.path.isdir(root) else "is not a folder"
    fix = "set LSGD_DATA to the folder that has the folders imagenet, cifar10, …, or unset it"
    return CheckItem("LSGD_DATA", FAIL, f"{root} {kind}", fix)


def _dataset(
    *,
    name: str,
    root: str,
    problem: str | None,
    prepare: str,
    bundled: bool,
    there: bool,
    holds: str,
) -> CheckItem:
    label = f"data: {name}"
    if problem is not None:
        what, _, remedy = problem.partition("; ")
        return CheckItem(label, FAIL, what, remedy or prepare)
    if bundled:
        return CheckItem(label, PASS, f"{holds}, shipped with lsgd")
    if not there:
        return CheckItem(label, ABSENT, f"not at {root}", f"`{prepare}` prepares it")
    return CheckItem(label, PASS, f"{holds} at {root}")
