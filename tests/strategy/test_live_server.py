"""What a live server does about a worker that is lost."""

from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Condition
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.base_recipe import BASE, with_fields
from torch import Tensor

from lsgd.errors import DivergedError, PeerLostError, PreemptedError
from lsgd.strategy import live_server
from lsgd.strategy.gate import Tickets
from lsgd.strategy.live import LiveStrategy
from lsgd.strategy.live_server import (
    STOP_GRACE_SECONDS,
    EpochOutcome,
    LiveServer,
    MessageLayout,
    MessageType,
)
from lsgd.strategy.push_scheduler import PushScheduler, ReplyType
from lsgd.strategy.virtual import make_gates


class Comm:
    def wait_for_restart(self, worker: int, after: int) -> int:
        raise RuntimeError("the job has ended")


def a_server(
    comm: Any, tickets: int, *, number: int = 0, workers: int = 2, **fields: Any
) -> LiveServer:
    """A server of asynchronous training by two workers or so, before its first order."""
    recipe = with_fields(BASE, workers=workers, **{"strategy__name": "async"} | fields)
    [gate] = make_gates(recipe.strategy, workers, tickets)
    follows = number > 0
    server, layout = object.__new__(LiveServer), MessageLayout(0, 1)
    server.__dict__ |= {
        "nonfinite_step": None, "comm": comm, "epoch": 0,
        "desk": PushScheduler(gate, workers, None if number else Tickets(tickets), follows=follows),
        "followers": [], "layout": layout, "pending_replies": defaultdict(list),
        "lives": [0] * workers, "lock": Condition(), "missing": [], "number": number,
        "one_gate": recipe.strategy.name == "backup", "pairs": {}, "parts": (), "passed_on": 0,
        "pushes": defaultdict(deque), "read": [0] * workers, "recipe": recipe,
        "replaceable": frozenset({1} if comm else ()), "unsent": {},
        "row": [0.0] * layout.row_length,
        "shard": SimpleNamespace(values=[torch.zeros(3)]),
        "follows": follows, "timer": None, "stop_requested": False, "version": 0,
    }  # fmt: skip
    return server


@pytest.mark.parametrize("comm", [None, Comm()])
def test_the_order_ends_at_once_where_no_lost_worker_comes_back(comm: Any) -> None:
    """Else the others would train to the end of the epoch, and lose that."""
    server, pair = a_server(comm, 100), SimpleNamespace()
    with server.lock:
        server._send_replies(server.desk.begin(range(2)))
        server.pairs[1] = pair
        server._lose(1, pair)
    assert server.desk.is_stopping == (comm is None)
    assert server.missing == ([1] if comm is None else [])


def test_nobody_waits_until_a_stopped_worker_takes_its_replies() -> None:
    """The second is sent behind the first; both have come once it pushes."""
    sent: list[ReplyType] = []
    waited: list[ReplyType] = []

    def start_send(content: Tensor) -> Callable[[], None]:
        kind = ReplyType(int(content[:8].view(torch.float64)))
        sent.append(kind)
        return lambda: waited.append(kind)

    server, stopped = a_server(Comm(), 1), SimpleNamespace(start_send=start_send)
    server.pairs |= {0: SimpleNamespace(start_send=lambda _: None), 1: stopped}
    with server.lock:
        server._send_replies(server.desk.begin(range(2)))
        server._lose(0, server.pairs[0])  # whose batch the other gets
    assert (sent, waited) == ([ReplyType.WAIT, ReplyType.GO], [])
    push = server.layout.push_message(0, server.shard.values, ())
    push.numbers[1] = server.desk.lives[1]  # as the last reply has it
    push.numbers[3] = 1  # not finite: no update, and the end
    with server.lock:
        server._handle(1, push)
    assert (sent, waited) == (
        [ReplyType.WAIT, ReplyType.GO, ReplyType.END],
        [ReplyType.WAIT, ReplyType.GO],
    )


def test_who_is_told_to_leave_does_not_wait_for_a_stopped_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for its push nor for its word that it knows of the end; but for process 0."""
    server, silent = a_server(Comm(), 9), SimpleNamespace(start_send=lambda _: lambda: None)
    server.pairs |= {0: silent, 1: silent}
    push = server.layout.push_message(0, server.shard.values, ())
    waits: list[float] = []
    monkeypatch.setattr(live_server, "_start_timer", lambda seconds, what: waits.append(seconds))
    with server.lock:
        server._send_replies(server.desk.begin(range(2)))
    server.request_stop()
    server._leave_behind()
    assert waits == [STOP_GRACE_SECONDS, STOP_GRACE_SECONDS]
    assert (server.pairs.keys(), server.desk.over) == ({0}, False)
    push.numbers[3] = 1  # no update
    with server.lock:
        server._handle(0, push)
    assert server.desk.over
    push.numbers[0] = MessageType.CLOSE
    with server.lock:
        server._handle(0, push)
    assert server.members() == [(0, 0)]


def test_all_meet_without_a_worker_that_was_killed_before_it_knew_of_the_end() -> None:
    server, pairs = a_server(Comm(), 0), [SimpleNamespace(start_send=lambda _: lambda: None)] * 2
    server.pairs |= dict(enumerate(pairs))
    with server.lock:
        server._send_replies(server.desk.begin(range(2)))
        assert server.desk.over
        server.desk.closed.add(0)
    with ThreadPoolExecutor(1) as pool:
        members = pool.submit(server.members)
        with server.lock:
            server._lose(1, pairs[1])
        assert members.result(900) == [(0, 0)]


@pytest.mark.parametrize("steps", [[None, 2], [1, 2]])
def test_a_push_that_is_not_finite_and_reached_one_server_alone_ends_the_run(
    steps: list[int | None],
) -> None:
    """As of a worker that was lost while it sent it, to server 0 last."""
    live: Any = SimpleNamespace(epoch=3, recipe=SimpleNamespace(steps_per_epoch=10))
    outcomes = [EpochOutcome([], True, step, []) for step in steps]
    with pytest.raises(DivergedError, match=f"step {30 + (steps[0] or 2)} is not finite"):
        LiveStrategy._raise_early_end(live, outcomes)
    with pytest.raises(PreemptedError):
        LiveStrategy._raise_early_end(
            live, [replace(each, nonfinite_step=None) for each in outcomes]
        )


def push(server: LiveServer, worker: int, value: float, life: int = 0) -> None:
    """Let a push of this value arrive, which the worker has computed in this life."""
    message = server.layout.push_message(server.number, server.shard.values, ())
    message.values.fill_(value)
    message.numbers[1], message.numbers[5] = life, 32
    with server.lock:
        server._handle(worker, message)


@pytest.mark.parametrize("number", [0, 1])
def test_no_update_has_the_push_of_a_worker_from_before_it_was_lost(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that waited when it was lost, nor one that a follower gets later than its return.

    Else the server takes the older one at each update from then on.
    """
    fields = {"workers": 3, "strategy__name": "backup", "strategy__backup": 1}
    server, made = a_server(Comm(), 100, number=number, **fields), list[list[float]]()
    monkeypatch.setattr(
        server, "_update", lambda pushes: made.append([p.message.values[0].item() for p in pushes])
    )
    pair = SimpleNamespace(start_send=lambda _: lambda: None)
    server.pairs |= dict.fromkeys(range(3), pair)
    with server.lock:
        server._send_replies(server.desk.begin(range(3)))
    if number:
        with server.lock:
            for event in (-1 - 1, 3 + 1):
                server._do(event)
        push(server, 1, 1.0)
    else:
        push(server, 1, 1.0)
        with server.lock:
            server._lose(1, pair)
            server.pairs[1] = pair
            server._send_replies(server.desk.rejoin(1))
    for update in (1, 2):
        for worker, life in ((0, 0), (1, 1)):
            push(server, worker, 10 * update + worker, life)
            if number:
                with server.lock:
                    server._do(worker)
    assert made == [[10, 11], [20, 21]]
    assert not any(server.pushes.values())


def test_the_late_push_of_a_worker_that_was_given_up_on_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its step took longer than the server waits for it after a stop request; others are saved."""
    server = a_server(Comm(), 9)
    monkeypatch.setattr(live_server, "_start_timer", lambda *_: None)
    # It receives zeros, which are a push.
    pair = SimpleNamespace(start_send=lambda _: lambda: None, receive=lambda _: None)
    server.pairs |= {0: SimpleNamespace(start_send=lambda _: lambda: None), 1: pair}
    with server.lock:
        server._send_replies(server.desk.begin(range(2)))
        server.request_stop()
        server._leave_behind()
    before = list(server.desk.order)
    server._serve(1, pair)
    assert server.desk.order == before
    assert not server.pushes[1]


def test_a_follower_answers_a_worker_that_rejoined_before_it_was_connected() -> None:
    """With the values of that moment, as the order says; else it waits until the timeout."""
    sent: list[Tensor] = []
    pair = SimpleNamespace(
        start_send=lambda content: sent.append(content.clone()) or (lambda: None),
        receive=lambda _: (_ for _ in ()).throw(PeerLostError("the end of this test")),
    )
    comm: Any = SimpleNamespace(wait_for_restart=lambda *_: 1, open_pair=lambda *_: pair)
    fields = {"workers": 3, "strategy__name": "backup", "strategy__backup": 1}
    server = a_server(comm, 100, number=1, **fields)
    server.threads = []
    server.pairs |= dict.fromkeys((0, 2), SimpleNamespace(start_send=lambda _: lambda: None))
    with server.lock:
        server._send_replies(server.desk.begin(range(3)))
        server.desk.lost.add(1)
        for event in (-1 - 1, 3 + 1):
            server._do(event)
        server.shard.values[0] += 1  # another update
    server.comm = None  # the end of this test is not waited for
    server._await_restart(1, comm)
    [content] = sent
    reply = server.layout.reply_message(server.shard.values)
    reply.bytes.copy_(content)
    assert (reply.numbers[0], reply.numbers[1]) == (ReplyType.GO, 1)
    assert reply.values.tolist() == [0, 0, 0]
