"""What the supervisor reads in a run folder."""

import json
from pathlib import Path

import pytest

from lsgd.supervise.folder import repeated_straggler


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        (["a", "a", "a"], "a made the others wait in 3 of the last 3 epochs"),
        (["a", None, "a", "b", "a"], "a made the others wait in 3 of the last 5 epochs"),
        (["a", "a"], ""),  # a machine may have been disturbed for a while
        (["a", "b", "a", "b", "a", "b"], ""),
        ([None] * 5, ""),  # as rows of an older version have it
        ([["a"], 3, {"a": 1}] * 3, ""),  # a file of somebody else
        # Those before the last ten count no more.
        (["a"] * 9 + [None] * 8, ""),
    ],
)
def test_a_host_that_is_a_straggler_again_and_again(
    hosts: list[object], says: str, tmp_path: Path
) -> None:
    rows: list[object] = [7]
    for number, host in enumerate(hosts):
        rows.append({"kind": "train", "step": number})
        row = {"kind": "epoch", "step": number, "epoch": number}
        rows.append(row if host is None else row | {"straggler": host})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = repeated_straggler(tmp_path)
    assert found.startswith(says)
    assert bool(found) == bool(says)
    assert repeated_straggler(tmp_path / "none") == ""
