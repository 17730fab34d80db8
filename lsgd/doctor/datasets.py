"""Items on the datasets: where each is looked for, and whether it is complete."""

import os
from collections.abc import Mapping

from lsgd.doctor.child import Answer
from lsgd.doctor.item import ABSENT, FAIL, PASS, Item


def datasets(answer: Answer, environment: Mapping[str, str] = os.environ) -> list[Item]:
    """One item per dataset, after one on the folder that LSGD_DATA names, if it is set."""
    facts = answer.facts.get("datasets", [])
    items = [_dataset(**each) for each in facts]
    if answer.why:
        after = f" after {facts[-1]['name']}" if facts else ""
        fix = "fetch the dataset that it stopped at again, or see recipes above"
        items.append(Item("data", FAIL, f"reading stopped{after}: {answer.why}", fix))
    if (root := environment.get("LSGD_DATA")) is not None:
        items.insert(0, _data_folder(root, [each["name"] for each in facts if each["there"]]))
    return items


def _data_folder(root: str, names: list[str]) -> Item:
    if names:
        return Item("LSGD_DATA", PASS, f"{root} has {', '.join(names)}")
    kind = "has no dataset in it" if os.path.isdir(root) else "is no folder"
    fix = "let LSGD_DATA name the folder that has imagenet, cifar10, … as folders, or unset it"
    return Item("LSGD_DATA", FAIL, f"{root} {kind}", fix)


def _dataset(
    *,
    name: str,
    root: str,
    problem: str | None,
    prepare: str,
    bundled: bool,
    there: bool,
    holds: str,
) -> Item:
    label = f"data: {name}"
    if problem is not None:
        what, _, remedy = problem.partition("; ")
        return Item(label, FAIL, what, remedy or prepare)
    if bundled:
        return Item(label, PASS, f"{holds}, shipped with lsgd")
    if not there:
        return Item(label, ABSENT, f"not at {root}", f"`{prepare}` makes it ready")
    return Item(label, PASS, f"{holds} at {root}")
