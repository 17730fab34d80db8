"""A job whose processes may come back."""

import pickle
import subprocess
import sys
from dataclasses import replace
from threading import Lock
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.composed import compose_recipe

from lsgd import comm
from lsgd.autotune import resolve_auto_fields
from lsgd.comm import elastic
from lsgd.comm.elastic import ElasticTorchComm
from lsgd.errors import PeerLostError
from lsgd.job.launcher import Launch
from lsgd.recipe import CommSettings
from lsgd.recipe.fields import AUTO

# Some look for a process that is back, and some find one, without a pause: so at any moment of the
# end one of them uses the store, and one connects to it.
PROGRAM = """
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace

import torch

from lsgd.comm import elastic
from lsgd.job.launcher import Launch
from lsgd.supervise.singly import free_port

elastic.time = SimpleNamespace(sleep=lambda seconds: None)
launch = Launch("torchrun", master_addr="127.0.0.1", master_port=free_port(), restart_count=0)
comm = elastic.ElasticTorchComm(launch, device=torch.device("cpu"), timeout=600, join_timeout=600)
comm.answer_restarted(lambda: None)
comm.store.set("life/2", "1")

def find_again_and_again():
    while True:
        with suppress(RuntimeError):
            comm.wait_for_restart(2, 0)

Thread(target=comm.wait_for_restart, args=(1, 0), daemon=True).start()
for _ in range(4):
    Thread(target=find_again_and_again, daemon=True).start()
comm.close()
"""


@pytest.mark.slow
def test_who_looks_for_others_does_not_abort_the_process_in_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr


class Store(dict[str, Any]):
    """What processes tell each other, in this one."""

    def check(self, keys: list[str]) -> bool:
        return keys[0] in self

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def test_an_answer_that_cannot_be_had_now_is_had_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a checkpoint is replaced while it is read: the thread is there for all who come."""
    comm, store, asked = (
        object.__new__(ElasticTorchComm),
        Store({f"ask/{n}": b"" for n in (1, 2, 3)}),
        [],
    )
    comm._looking, comm._closed = Lock(), False
    monkeypatch.setattr(elastic, "LOOK", 0)

    def answer() -> int:
        asked.append(len(asked))
        if len(asked) == 1:
            raise FileNotFoundError(2, "No such file", "checkpoint-2.pt")
        comm._closed = len(asked) == 4  # before the answer to the second is there
        return len(asked)

    comm._answer(answer, store)
    assert pickle.loads(store["answer/1"]) == 2
    assert pickle.loads(store["answer/2"]) == 3
    assert "a restarted process gets no answer yet" in capsys.readouterr().err


def test_a_restarted_process_gets_what_process_0_has_published() -> None:
    first, restarted = object.__new__(ElasticTorchComm), object.__new__(ElasticTorchComm)
    first.process, restarted.process = 0, 1
    first.store = restarted.store = Store()
    assert first.publish("ahead", 8) == 8
    assert restarted.publish("ahead", 16) == 8


def test_a_restarted_process_takes_the_resolved_fields_of_process_0() -> None:
    """It is sent no broadcast: each was answered by the restart point, which is no list of fields.

    A question that only the group can answer is refused by name.
    """
    store = Store()
    first, restarted = (object.__new__(ElasticTorchComm) for _ in range(2))
    for rank, each in enumerate((first, restarted)):
        each.__dict__ |= {
            "process": rank, "rank": rank, "restart_count": rank, "is_outside_group": bool(rank),
            "world_size": 2, "library": "torch", "store": store,
        }  # fmt: skip
    first.__dict__["broadcast_object"] = lambda value: value
    made = compose_recipe("+recipe=digits", "channels_last=auto", "compile=auto", "device=cpu")
    resolved, _ = resolve_auto_fields(made, {}, first, torch.device("cpu"))
    assert resolved.channels_last != AUTO
    taken, _ = resolve_auto_fields(made, {}, restarted, torch.device("cpu"))
    assert taken == resolved
    with pytest.raises(PeerLostError, match="process 1 has restarted, and receives no broadcast"):
        restarted.broadcast_object(0)


def test_who_finds_nobody_for_a_new_group_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where process 0, with its store, is lost at the end of an order: it is named as lost."""
    groups = [1]

    def destroy(_: None = None) -> None:
        assert groups.pop(), "Process group cannot be None"

    init = Mock(side_effect=RuntimeError("the store does not answer"))
    monkeypatch.setattr(elastic.dist, "destroy_process_group", destroy)
    monkeypatch.setattr(elastic.dist, "init_process_group", init)
    monkeypatch.setattr(elastic, "PrefixStore", lambda _, store: store)
    own = object.__new__(ElasticTorchComm)
    own.__dict__ |= {
        "process": 1, "members": [(0, 0), (1, 0)], "is_outside_group": False, "device_backend": "",
        "backend": "gloo", "timeout": 1.0, "_looking": Lock(), "_closed": False, "store": Store(),
    }  # fmt: skip
    with pytest.raises(PeerLostError, match="could not reconnect"):
        own.form_group("0/0", [(1, 0)])
    own.close()
    assert groups == []


def test_processes_on_gpus_form_one_group_which_a_restarted_one_cannot_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has lost the others: its launcher gives up in the end, and a supervisor starts all."""
    formed: list[Launch] = []
    monkeypatch.setattr(comm.torch, "TorchComm", lambda launch, **_: formed.append(launch))
    first = Launch("torchrun", 1, 2, 1, 2, "here", 1, restart_count=0)
    comm._open("torch", first, torch.device("cuda"), CommSettings())
    assert formed == [first]
    again = replace(first, restart_count=1)
    with pytest.raises(PeerLostError, match="rerun the same command to resume"):
        comm._open("torch", again, torch.device("cuda"), CommSettings())
