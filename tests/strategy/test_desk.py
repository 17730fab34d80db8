"""What live servers decide, in any order in which messages can come and workers be lost."""

import math
import random
from collections import defaultdict
from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lsgd.strategy.gate import AdmissionGate, BarrierGate, BoundedStalenessGate, Tickets
from lsgd.strategy.order import EpochScript, play_orders
from lsgd.strategy.push_scheduler import PushScheduler, ReplyType, ServerReply


class Job:
    """Servers with workers whose messages come in a random order; each worker's in its own."""

    def __init__(
        self,
        gates: list[AdmissionGate],
        workers: int,
        tickets: int,
        ahead: int,
        seed: int,
        losses: int,
    ) -> None:
        self.draw, self.losses, self.count = random.Random(seed), losses, workers
        self.ahead = ahead
        self.tickets = Tickets(tickets, ahead=ahead)
        self.desks = [
            PushScheduler(gate, workers, None if server else self.tickets)
            for server, gate in enumerate(gates)
        ]
        self.versions = [0 for _ in gates]
        self.mail: defaultdict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
        """What is under way from a worker to a server."""
        self.replies: defaultdict[tuple[int, int], list[tuple[ServerReply, int, int]]] = (
            defaultdict(list)
        )
        """What a worker has got of a server: replies, each with its life and the version."""
        self.pushed: list[tuple[int, int, tuple[int, ...]]] = []
        """Worker, ticket and read versions of every push that was computed."""
        self.applied: list[list[int]] = [[] for _ in gates]
        """By server, the pushes that it has applied, by their number."""
        self.under_way: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """What a server has of a worker's pushes, each with the life it is of."""
        self.lives: list[int] = []
        """The life of the worker that has computed each push."""
        self.lost: set[int] = set()
        self.programs = [self.program(worker, came_back=False) for worker in range(workers)]
        self.wants = [next(program) for program in self.programs]
        """The server whose reply each worker waits for; None if it is done."""
        for server, desk in enumerate(self.desks):
            self.say(server, desk.begin(range(workers)))

    def program(self, worker: int, *, came_back: bool) -> Generator[int | None, Any, None]:
        """What a worker does with the replies that it asks for, as Live has it."""
        others, queue, paused = range(1, len(self.desks)), [], came_back
        finished = False
        while True:
            reply, life, version = yield 0
            if reply.kind is ReplyType.END:
                break
            if reply.kind is ReplyType.WAIT and paused:
                continue
            if reply.kind is ReplyType.GO and paused:
                self.post(worker, others, "return", life)
                paused = False
            read = [version]
            for server in others:
                _, _, version = yield server
                read.append(version)
            assert not (finished and reply.tickets), "its loader has finished"
            queue += reply.tickets
            if reply.kind is ReplyType.WAIT:
                self.post(worker, others, "pause", 0)
                paused = True
            else:
                # A loader that looks ahead finds no ticket left, soon after this reply or later.
                finished |= reply.last and self.ahead > 0 and self.draw.random() < 0.5
                self.pushed.append((worker, queue.pop(0), (*read,)))
                self.lives.append(life)
                word = "push of a finished loader" if finished else "push"
                self.post(worker, range(len(self.desks)), word, len(self.pushed) - 1)
        self.post(worker, others, "close", 0)
        yield None

    def post(self, worker: int, servers: range, word: str, number: int) -> None:
        for server in servers:
            self.mail[worker, server].append((word, number))

    def say(self, server: int, replies: list[ServerReply]) -> None:
        for reply in replies:
            if reply.worker not in self.lost:
                life = self.desks[server].lives[reply.worker]
                self.replies[reply.worker, server].append((reply, life, self.versions[server]))
                self.go_on(reply.worker)

    def go_on(self, worker: int) -> None:
        while (wants := self.wants[worker]) is not None and self.replies[worker, wants]:
            self.wants[worker] = self.programs[worker].send(self.replies[worker, wants].pop(0))

    def run(self) -> None:
        while (
            waiting := sorted(key for key, letters in self.mail.items() if letters)
        ) or self.lost:
            if self.lost and (not waiting or self.draw.random() < 0.2):
                self.bring_back(min(self.lost))
                continue
            if self.losses and self.draw.random() < 0.1:
                if present := sorted({*range(1, self.count)} - self.lost):
                    self.lose(self.draw.choice(present))
                continue
            worker, server = self.draw.choice(waiting)
            self.deliver(worker, server)

    def deliver(self, worker: int, server: int) -> None:
        word, number = self.mail[worker, server].pop(0)
        desk = self.desks[server]
        match word:
            case "push" | "push of a finished loader":
                if word != "push":
                    desk.finish(worker)
                self.under_way[worker, server].append((self.lives[number], number))
                effects, replies = desk.push(worker)
                for each in effects.applied:
                    self.applied[server].append(self.take(each, server))
                if effects.dropped:
                    self.take(worker, server)
                self.versions[server] += bool(effects.applied)
            case "pause":
                replies = desk.pause(worker)
            case "return":
                replies = desk.rejoin(worker, number)
            case "close":
                replies = desk.close(worker)
        self.say(server, replies)

    def take(self, worker: int, server: int) -> int:
        """The oldest push that the server has of the worker's present life, as in LiveServer."""
        life, number = self.under_way[worker, server].pop(0)
        current = life >= self.desks[server].lives[worker]
        return number if current else self.take(worker, server)

    def lose(self, worker: int) -> None:
        """The worker dies; servers may have got a part of what it has sent."""
        self.losses -= 1
        for server in range(len(self.desks)):
            while self.mail[worker, server] and self.draw.random() < 0.5:
                self.deliver(worker, server)
        if self.desks[0].over:
            return
        self.lost.add(worker)
        for server, desk in enumerate(self.desks):
            self.mail[worker, server].clear()
            self.replies[worker, server].clear()
            self.say(server, desk.lose(worker))

    def bring_back(self, worker: int) -> None:
        """The worker is started again, which is too late if the order has ended."""
        self.lost.discard(worker)
        if self.desks[0].over:
            return
        self.programs[worker] = self.program(worker, came_back=True)
        self.wants[worker] = next(self.programs[worker])
        self.say(0, self.desks[0].rejoin(worker))

    def script(self, gates: "partial[list[AdmissionGate]]", tickets: int) -> EpochScript:
        order = [np.array(desk.order, np.int16) for desk in self.desks]
        left = Tickets(tickets, ahead=self.tickets.ahead)
        script = play_orders([order], gates, left, self.count)
        assert left.left == 0
        return script


def gates(
    kind: str, slack: float, workers: int, servers: int, pushes: int, left: int
) -> list[AdmissionGate]:
    if kind == "backup":
        return [BarrierGate(workers, pushes=pushes, tickets=left)]
    return [BoundedStalenessGate(workers, slack=slack) for _ in range(servers)]


@settings(max_examples=100)
@given(data=st.data())
def test_what_is_recorded_is_what_happened(data: st.DataObject) -> None:
    """Every batch is used once, and the order says which values every push was computed with."""
    workers, tickets = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 25))
    kind = data.draw(st.sampled_from(["backup", "bounded"]))
    slack = data.draw(st.sampled_from([0, 1, math.inf]))
    servers = 1 if kind == "backup" else data.draw(st.integers(1, 3))
    pushes = data.draw(st.integers(1, workers))
    ahead = 0 if kind == "backup" else data.draw(st.integers(0, 2))
    seed = data.draw(st.integers(0, 2**32))
    losses = data.draw(st.integers(0, 4)) if workers > 1 else 0
    make = partial(gates, kind, slack, workers, servers, pushes)
    job = Job(make(tickets), workers, tickets, ahead, seed, losses)
    job.run()
    assert job.desks[0].over
    script = job.script(make, tickets)
    assert len(job.applied[0]) == tickets
    assert sorted(job.pushed[each][1] for each in job.applied[0]) == list(range(tickets))
    for server, applied in enumerate(job.applied):
        made = [number for update in script.updates[server] for number in update]
        assert [job.pushed[each] for each in applied] == [
            (script.pushes[each].worker, script.pushes[each].ticket, (*script.pushes[each].read,))
            for each in made
        ]


def test_a_batch_of_a_lost_worker_goes_to_one_that_waits() -> None:
    desk = PushScheduler(BoundedStalenessGate(2), 2, Tickets(2))
    assert [each.tickets for each in desk.begin(range(2))] == [[0], [1]]
    assert desk.push(0)[1] == [ServerReply(0, ReplyType.WAIT)]
    assert desk.lose(1) == [ServerReply(0, ReplyType.GO, [1])]
    assert desk.push(0)[1] == [ServerReply(0, ReplyType.WAIT), ServerReply(0, ReplyType.END)]
    assert desk.order == [0, -1, -2, 2, 0, -1]


def test_a_worker_whose_loader_has_come_to_its_end_is_asked_for_nothing() -> None:
    desk = PushScheduler(BoundedStalenessGate(2), 2, Tickets(2, ahead=1))
    assert [(each.tickets, each.last) for each in desk.begin(range(2))] == [
        ([0, 1], False),
        ([], False),
    ]
    desk.finish(1)
    desk.lose(0)
    assert desk.is_stuck
    assert [each.kind for each in desk.rejoin(0)] == [ReplyType.GO]
    assert not desk.is_stuck


def test_a_push_of_a_worker_whose_loader_has_finished_brings_it_no_ticket_of_a_lost_one() -> None:
    """It would compute none of them, and all would wait for it until the timeout."""
    left, make = Tickets(4, ahead=1), lambda _: [BoundedStalenessGate(2)]
    desk = PushScheduler(make(4)[0], 2, left)
    assert [each.tickets for each in desk.begin(range(2))] == [[0, 1], [2, 3]]
    assert desk.push(0)[1] == [ServerReply(0, ReplyType.GO, last=True)]
    desk.lose(1)
    desk.finish(0)
    assert desk.push(0)[1] == [ServerReply(0, ReplyType.WAIT)]
    assert desk.is_stuck
    assert desk.rejoin(1) == [ServerReply(1, ReplyType.GO, [2, 3])]
    desk.push(1)
    assert [each.kind for each in desk.push(1)[1]] == [ReplyType.WAIT, ReplyType.END, ReplyType.END]
    assert desk.order == [0, -2, 4, 0, -1, 3, 1, 1, -2]
    order = [np.array(desk.order, np.int16)]
    script = play_orders([order], make, Tickets(4, ahead=1), 2)
    assert [(push.worker, push.ticket) for push in script.pushes] == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    ]


def test_a_follower_learns_of_a_finished_loader_without_harm() -> None:
    desk = PushScheduler(BarrierGate(2, pushes=2, tickets=4), 2, follows=True)
    desk.begin(range(2))
    assert desk.follow(2 * 2 + 1) == []
    assert (desk.order, desk.away) == ([], set())


def test_those_that_wait_at_their_gate_are_told_of_the_end() -> None:
    desk = PushScheduler(BarrierGate(2, pushes=2, tickets=8), 2, Tickets(8))
    desk.begin(range(2))
    desk.push(0)
    assert desk.stop() == []
    assert desk.push(1)[1] == [ServerReply(0, ReplyType.END), ServerReply(1, ReplyType.END)]


def test_noting_a_push_costs_little() -> None:
    """Counted by what is kept, since a clock says little here: one number."""
    desk = PushScheduler(BoundedStalenessGate(1), 1, Tickets(1000))
    desk.begin(range(1))
    for _ in range(999):
        desk.push(0)
    assert desk.order == [0] * 999


def test_a_follower_ends_when_its_server_does() -> None:
    desk = PushScheduler(BarrierGate(1, pushes=1, tickets=2), 1, follows=True)
    desk.begin(range(1))
    assert desk.close(0) == []
    assert not desk.over
    assert desk.no_more() == [ServerReply(0, ReplyType.END)]
    assert desk.over
