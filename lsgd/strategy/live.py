"""Asynchronous training on real processes: each worker and each server is one, and who comes first
is handled first.

Process 0 and those after it have a worker each; the servers are on the last processes, or beside
the first workers (strategy.topology). A worker talks with each server over a connection of their
own. The servers record the order in which they handle pushes (lsgd.strategy.recorded): with it the
run can be made again, bit by bit, on any processes. When the order of an epoch has ended, all
processes meet, and have the whole model.
"""

import copy
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, Living, Pairing, sum_
from lsgd.comm.pair import Pair
from lsgd.errors import Diverged, PeerLost, Preempted, Refused, TooLate
from lsgd.inputs import passes_ahead
from lsgd.job import preemption
from lsgd.job.parent import orphaned
from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass
from lsgd.strategy import Task
from lsgd.strategy.desk import Kind
from lsgd.strategy.gate import Tickets
from lsgd.strategy.guard import LOWER_LR
from lsgd.strategy.live_server import LATEST, Layout, LiveServer, Word
from lsgd.strategy.order import play
from lsgd.strategy.placement import place
from lsgd.strategy.recorded import FILE, Orders
from lsgd.strategy.shard import Shard, in_memory, load_whole, make_whole
from lsgd.strategy.tasks import ticket_batches, weight
from lsgd.strategy.virtual import make_gates
from lsgd.strategy.work import FLAGS, open_work
from lsgd.tally import State, Tally
from lsgd.workloads import Part, Workload

WHOLE = {4: torch.int32, 8: torch.int64}
"""By the bytes of a number, the whole numbers of as many."""
T = TypeVar("T")
LOOK = 0.2
"""Seconds between two looks of a process without a worker whether it was told to leave."""


class Live:
    """The strategy of backup, bounded and async with strategy.order=live. The model holds what the
    worker of this process has read last."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        if not isinstance(comm, Pairing):
            raise Refused(
                f"strategy.order=live connects each worker with each server, and {comm.library} "
                "cannot; write comm=torch, or strategy.order=virtual"
            )
        self.recipe, self.workload, self.model = recipe, workload, model
        self.comm: Pairing = comm
        self.tally = tally
        self.living = comm if isinstance(comm, Living) else None
        self.process = comm.rank
        settings = recipe.strategy
        self.hosted = range(self.process, self.process + 1)
        if self.process >= recipe.workers:
            self.hosted = range(0)
        first_home = recipe.workers if settings.topology == "central" else 0
        self.homes = [first_home + server for server in range(settings.servers)]
        """The process of each server."""
        serves = self.process in self.homes
        if serves and self.living and self.living.outside:
            raise PeerLost(
                f"process {self.process} was the server {self.homes.index(self.process)}, whose "
                "values are lost with it; the checkpoint is intact, and the same words and run_dir "
                "resume it"
            )
        self.dispensable = not (
            self.living is None or serves or self.process == 0 or settings.pushes_ways
        )
        """Whether the others go on without this process: then the end of its parent, as of an actor
        of Ray's, is its own alone, and no word for all to leave."""
        self.served = copy.deepcopy(model) if serves else model
        """What the server of this process updates, while a worker computes with other values."""
        # Whoever is the home of server 0 has the parts of all workers, and pushes bring it what
        # they have seen.
        carried = range(recipe.workers) if self.process == self.homes[0] else range(0)
        self.moved = workload.parts(self.served, carried, comm)
        """The parts that server 0 moves, while those of its process's worker see more."""
        self.parts: tuple[Part, ...] = workload.parts(model, carried, comm)
        self.parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in self.parameters]
        self.begins = list(accumulate(sizes, initial=0))
        self.work = open_work(recipe, model, self.parts, self.hosted)
        self.slices = slices = place(sizes, settings.servers, settings.placement)
        served = replace(recipe, optim=recipe.server_optim)
        norms = [self.parameters[0].new_zeros(())]
        # Nothing that is not finite comes to an update.
        finite = norms[0].new_zeros((), dtype=torch.float32)
        self.whole = make_whole(self.served, served)
        self.shards = [
            Shard(self.served, self.whole, each, served, finite, norm=lambda: norms[0])
            for each in slices
        ]
        flats = [in_memory(parameter) for parameter in self.parameters]
        self.values = [
            [flats[each.parameter][each.begin : each.end] for each in of_server]
            for of_server in slices
        ]
        """The slices of each server in the model."""
        self.norms = norms
        self.one_gate = settings.name == "backup"
        gates = len(make_gates(settings, recipe.workers, recipe.tickets))
        self.orders = Orders(recipe.workers, gates)
        self.next_step = 0
        self.layout: Layout | None = None
        """None before the processes are connected."""
        self.row: list[float] = [0.0] * Layout(0, len(tally.counts)).row
        """What is known of this epoch, as Layout.row says."""
        self.server: LiveServer | None = None
        self.pairs: list[Pair] = []
        """Of this process's worker, one to each server."""
        self.pids = ""
        self.open = False
        """Whether an order has begun whose end this process has not settled."""

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """A task for each ticket that this process's worker gets, until there are no more."""
        counted = self.tally.state(partial(sum_, self.comm))
        self.tally.clear()
        done = float(self.next_step - epoch * self.recipe.steps_per_epoch)
        counts = [done, float(counted["loss"]), *map(float, counted["counts"])]
        self.row = self.shown = counts + [0.0] * (4 + LATEST)
        return self._tasks(epoch) if steps else iter(())

    def _tasks(self, epoch: int) -> Iterator[Task]:
        self._begin(epoch)
        while self.hosted and not self.over:
            if self.tickets:
                ticket = self.tickets.popleft()
                self.taken += 1
                batches = ticket_batches(self.recipe, self.workload, epoch, ticket)
                divisor = sum(weight(self.workload, examples) for examples in batches)
                passes = [Pass(epoch, examples, self.hosted, ticket) for examples in batches]
                yield Task(self.next_step, divisor, active_workers=1, passes=passes)
            elif self.given == self.taken:
                self._hear()
            elif self.last:
                # The loader looks ahead, and there is nothing to be seen any more.
                self.finished = True
                return
            else:
                raise RuntimeError(
                    f"the loader looks further ahead than {self.orders.ahead} passes"
                )

    def read(self, task: Task, *, leave: bool) -> None:
        """Begin a push: the model holds what the worker has got with its ticket."""
        self.told |= leave and not (self.dispensable and orphaned())
        read = self.epoch * self.recipe.steps_per_epoch + self.row[0]
        divisors = [weight(self.workload, each.examples) for each in task.passes]
        whole = [self.recipe.batch_size]  # who pushes does not know the others of its update
        self.work.begin(self.process, read, whole if self.one_gate else divisors)

    def backward(self, loss: Tensor) -> None:
        """Make a backward pass of the push."""
        self.work.backward(loss)

    def give(self, task: Task) -> None:
        """Push, and wait until the worker is released."""
        self.given += 1
        self._push(task)
        before = self.row[0]
        self._hear()
        # Among the updates that the model has had since there may be one after which a row is due.
        done = self.epoch * self.recipe.steps_per_epoch + int(self.row[0])
        due = done - done % self.recipe.log_steps
        self.next_step = due if due > done - (self.row[0] - before) else done

    def check(self) -> bool:
        """Raise what has ended the order before this worker had pushed for all of its tickets."""
        if self.over and self.given < self.taken:
            self.settle()
        return False

    def settle(self) -> None:
        """Wait for the end of the order, and bring what each server has to all processes.

        Raises Diverged, Preempted and PeerLost, of which an earlier end of the order tells.
        """
        if self.open:
            while self.hosted and not self.over:
                self._hear()
            while self.server and not self.server.ended(LOOK):
                if preemption.told():
                    self.server.tell()
            self.open = False
            self._meet()
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """The momentum of all servers, and the orders so far."""
        for server, (shard, home) in enumerate(zip(self.shards, self.homes, strict=True)):
            if self.process == home:
                shard.report()
            self._bring(shard.momenta(), server)
        state = self.whole.state_dict()
        groups = self._everyone(state["param_groups"])[self.homes[0]]
        orders = {"orders": self.orders.to_tensor()}
        return state | {"param_groups": groups} | orders | self.work.state(self.comm)

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on with the tickets that the orders so far have left."""
        load_whole(self.whole, state)
        for shard in self.shards:
            shard.link()
        self.work.restore(state)
        self.orders = Orders.of_tensor(state["orders"])
        self.next_step = step

    def counted(self) -> State:
        """What server 0 has counted in this epoch, as far as this process knows."""
        loss, *counts = self.row[1 : 2 + len(self.tally.counts)]
        state = {
            "counts": torch.tensor(counts, dtype=torch.int64),
            "loss": torch.tensor(loss, dtype=torch.float64),
        }
        return {name: each.to(self.tally.loss.device) for name, each in state.items()}

    def now(self) -> dict[str, float | list[int]]:
        """The norm of the last gradient that server 0 had when this worker was released, and since
        the row before the staleness of its pushes, of which the last count is of LATEST and more,
        and how many were dropped."""
        norm, *since = (
            new if index == 0 else new - old
            for index, (new, old) in enumerate(
                zip(self.row[-LATEST - 4 :], self.shown[-LATEST - 4 :], strict=True)
            )
        )
        self.shown = self.row
        dropped, sum_of_staleness, *counts = map(int, since)
        largest = max((index for index, count in enumerate(counts) if count), default=0)
        return {
            "gradient_norm": norm,
            "staleness": sum_of_staleness / max(1, sum(counts)),
            "staleness_max": largest,
            "staleness_counts": counts[: largest + 1],
            "dropped": dropped,
        }

    def timed(self) -> list[tuple[str, object, str]]:
        """What a push waits for are the servers."""
        return [
            ("optimizer", self, "read"),
            ("backward", self, "backward"),
            ("communication", self, "give"),
        ]

    def keep(self, folder: Path) -> dict[str, str]:
        """Write the orders so far into the run folder; the row has their hash, and the pids of all
        processes."""
        self.orders.save(folder / FILE)
        return {"order": self.orders.digest, "pids": self.pids}

    # --- The beginning and the end of an order -------------------------------------------------

    def _begin(self, epoch: int) -> None:
        """Let the servers begin with the model as it is, and the worker read it."""
        if self.layout is None:
            self._connect()
        assert self.layout is not None
        recipe = self.recipe
        self.epoch = epoch
        tickets = Tickets(recipe.tickets, ahead=self.orders.ahead)
        versions = [0 for _ in self.homes]
        if orders := self.orders.epochs.get(epoch):
            make = partial(make_gates, recipe.strategy, recipe.workers)
            script = play(orders, make, tickets, recipe.workers)
            if script.pushes:
                made = [len(updates) for updates in script.updates]
                versions = made * len(versions) if self.one_gate else made
            for worker in range(recipe.workers):
                tickets.give_back(worker)
        self.tickets: deque[int] = deque()
        self.given = self.taken = 0
        """How many pushes were given, and how many the loader knows of."""
        self.over = self.last = self.finished = self.told = False
        self.paused = self.living is not None and self.living.outside
        """Whether the other servers than server 0 know of no ticket for this worker."""
        if self.server:
            number = self.server.number
            served, own = self.served.state_dict(), self.model.state_dict()
            torch._foreach_copy_(list(served.values()), list(own.values()))
            for part, moved in zip(self.parts, self.moved, strict=True):
                moved.restore(part.state(lambda _: None))
            gates = make_gates(recipe.strategy, recipe.workers, tickets.left)
            gate = gates[0 if self.one_gate else number]
            self.server.begin(gate, None if number else tickets, versions[number], self.row, epoch)
        self.open = True
        if self.hosted:
            self._hear()

    def _connect(self) -> None:
        """Open the connections of this process."""
        ahead = max(self.comm.gather_objects(passes_ahead(self.recipe) if self.hosted else 0))
        if ahead and self.one_gate:
            raise Refused(
                f"a loader that takes {ahead} passes ahead keeps tickets from other workers, and "
                "updates of strategy=backup would wait for them; write inputs=torchvision "
                "inputs.decoders=0, which does not look ahead"
            )
        self.orders.ahead = max(ahead, self.orders.ahead)
        self.layout = Layout(self.orders.ahead, len(self.tally.counts))
        if self.process in self.homes:
            number = self.homes.index(self.process)
            self.server = LiveServer(
                number,
                self.shards[number],
                self.moved,
                self.recipe,
                self.layout,
                self.norms,
                self.living,
            )
        own = self.server
        workers, servers = range(self.recipe.workers), range(len(self.homes))
        wanted = [(f"{worker}-{server}", 1) for worker in self.hosted for server in servers]
        if own:
            wanted += [(f"{worker}-{own.number}", 0) for worker in workers]
            if self.one_gate and own.number == 0:
                wanted += [(f"follow-{server}", 0) for server in servers[1:]]
            elif self.one_gate:
                wanted.append((f"follow-{own.number}", 1))
        opened = iter(self.comm.open_pairs(wanted))
        self.pairs = list(islice(opened, len(self.hosted) * len(servers)))
        if own:
            own.pairs = dict(zip(workers, opened, strict=False))
            if self.one_gate and own.number == 0:
                own.followers = list(opened)
            elif self.one_gate:
                [own.leader] = opened
        pushed, replied = self.layout.push_message, self.layout.reply_message
        self.pushes = [pushed(each, self.values[each], self.parts) for each in servers]
        self.replies = [replied(self.values[each]) for each in servers]

    def _meet(self) -> None:
        """Learn how the order has ended, and bring what the servers have to all processes."""
        own = self.server
        said = (own.outcome(), own.recorded()) if own else (None, None)
        if self.living:
            orders = len(self.orders.epochs.get(self.epoch, []))
            members = None
            if own and own.number == 0:
                members = own.members() + [
                    (home, 0) for home in self.homes if home >= self.recipe.workers
                ]
            self.living.meet(f"{self.epoch}/{orders}", members)
        everyone = self._everyone((os.getpid(), *said))
        self.pids = " ".join(str(pid) for pid, *_ in everyone.values())
        outcome = everyone[self.homes[0]][1]
        assert outcome is not None
        rows = [everyone[home][2] for home in self.homes]
        order = rows[: self.orders.servers]
        if any(map(len, order)):
            self.orders.epochs.setdefault(self.epoch, []).append(order)
        self.row = outcome.row
        self.next_step = self.epoch * self.recipe.steps_per_epoch + int(outcome.row[0])
        for server, home in enumerate(self.homes):
            values = self.shards[server].values if self.process == home else self.values[server]
            self._bring(values, server)
            for value, brought in zip(self.values[server], values, strict=True):
                value.copy_(brought)
        if own and own.number == 0:
            for part, moved in zip(self.parts, self.moved, strict=True):
                part.restore(moved.state(lambda _: None))
        whole_numbers = [each for each in self.model.buffers() if not each.is_floating_point()]
        if own:
            served = [each for each in self.served.buffers() if not each.is_floating_point()]
            for buffer, its in zip(whole_numbers, served, strict=True):
                buffer.copy_(its)
        self._bring(whole_numbers, 0)
        said_by = [each for _, each, _ in everyone.values() if each]
        missing = sorted({worker for each in said_by for worker in each.missing})
        if missing:
            raise PeerLost(
                f"the workers {', '.join(map(str, missing))} are lost, and the others cannot go on "
                "without them; the checkpoint is intact, and the same words and run_dir resume it"
            )
        if outcome.bad is not None:
            step = self.epoch * self.recipe.steps_per_epoch + outcome.bad
            raise Diverged(
                f"the loss or a gradient of step {step} is not finite, and nothing was saved "
                f"since; {LOWER_LR}; strategy.order=PATH of the run folder's {FILE} comes to the "
                "same step again"
            )
        if outcome.told:
            raise Preempted

    def _everyone(self, value: T) -> dict[int, T]:
        """The values of all processes that are left, by their numbers."""
        return dict(self.comm.gather_objects((self.process, value)))

    def _bring(self, tensors: list[Tensor], server: int) -> None:
        """Replace these tensors by those of the home of a server, bit by bit."""
        for tensor in tensors:
            # As whole numbers, whose sum with zeros is what it was: -0.0 + 0.0 is not.
            bits = in_memory(tensor).view(WHOLE[tensor.element_size()])
            if self.process != self.homes[server]:
                bits.zero_()
            sum_(self.comm, bits)

    # --- The worker ----------------------------------------------------------------------------

    def _push(self, task: Task) -> None:
        """Send the gradient to all servers, to server 0 last: what that has got all others get."""
        own = self.work.push()
        norm = torch.linalg.vector_norm(own[: self.begins[-1]])
        doubt = (0 * (own[-FLAGS] + norm)).isnan()
        numbers = torch.zeros_like(self.pushes[0].numbers)
        numbers[2], numbers[3], numbers[4] = self.told, doubt, norm
        numbers[5], numbers[6] = task.divisor, self.finished
        numbers[7] = self.tally.loss
        numbers[8:] = self.tally.counts
        self.tally.clear()
        for server in reversed(range(len(self.pairs))):
            message = self.pushes[server]
            message.numbers.copy_(numbers)
            begin = 0
            for each in self.slices[server]:
                start, size = self.begins[each.parameter] + each.begin, each.end - each.begin
                message.values[begin : begin + size].copy_(own[start : start + size])
                begin += size
            if server == 0:
                message.values[begin:].copy_(own[self.begins[-1] : -FLAGS])
            self.pairs[server].send(message.bytes)

    def _hear(self) -> None:
        """Take the reply of server 0, and what the others then say."""
        first, *others = self.replies
        self.pairs[0].receive(first.bytes)
        kind, life, epoch, told, tickets, last, *numbers = first.numbers.tolist()
        if epoch != self.epoch:
            raise TooLate(
                f"it has come back for epoch {self.epoch + 1}, and the others are in epoch "
                f"{int(epoch) + 1} by now; its next life may be in time"
            )
        assert self.layout is not None
        self.row = numbers[-self.layout.row :]
        self.told |= bool(told)
        if kind == Kind.END:
            self._close()
            return
        if kind == Kind.WAIT and self.paused:
            return
        if kind == Kind.GO and self.paused:
            self._say(Word.RETURN, life)
            self.paused = False
        for pair, reply in zip(self.pairs[1:], others, strict=True):
            pair.receive(reply.bytes)
            self.told |= bool(reply.numbers[3])
        for values, reply in zip(self.values, self.replies, strict=True):
            sent = reply.values.split([len(value) for value in values])
            for value, its in zip(values, sent, strict=True):
                value.copy_(its)
        self.tickets += [int(ticket) for ticket in numbers[: int(tickets)]]
        self.last = bool(last)
        if kind == Kind.WAIT:
            self._say(Word.PAUSE, life)
            self.paused = True

    def _say(self, word: Word, life: float) -> None:
        """Let the servers know that do not hear it from server 0."""
        if self.one_gate:
            return
        for server in range(1, len(self.pairs)):
            self._send_word(server, word, life)

    def _send_word(self, server: int, word: Word, life: float = 0) -> None:
        message = self.pushes[server]
        message.numbers.zero_()
        message.numbers[0], message.numbers[1], message.numbers[2] = word, life, self.told
        self.pairs[server].send(message.bytes)

    def _close(self) -> None:
        """Let all servers know of the end, and take what those that did not know it have sent."""
        for server in range(len(self.pairs)):
            self._send_word(server, Word.CLOSE)
        for pair, reply in zip(self.pairs[1:], self.replies[1:], strict=True):
            pair.receive(reply.bytes)
            while reply.numbers[0] != Kind.END:
                pair.receive(reply.bytes)
        self.over = True
