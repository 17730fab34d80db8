"""Rows of an embedding that travel make the updates of whole gradients, in fewer bytes.

Threads play the processes here; tests/distributed/test_trajectory.py has a job.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from helpers import sparse_row_runs
from helpers.differences import distance
from helpers.server_runs import ALLREDUCE, make_steps
from helpers.sparse_row_runs import (
    CASES,
    allreduce_checkpoint,
    difference_from_allreduce,
    make_learner,
    resumed_differences,
    sparse_row_servers,
)
from helpers.threaded import ThreadComm, run_on_threads
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, UsageError
from lsgd.learner import Learner
from lsgd.models.tagger import Tagger
from lsgd.step import train_step
from lsgd.strategy.sparse_rows import TableRows, add_up, sparse_tables, take_gradient

PTB = (
    "data.classes=10000", "data.window=20", "worker_batch=5", "data.train_examples=900",
    "model.embedding=200", "model.width=8", "precision=float32", "optim.clip_norm=5",
)  # fmt: skip
"""The embedding of 10,000 x 200 and the batch of 20 x 20 words of the small language model."""
TABLE = 2_000_000
"""The elements of that embedding."""


def test_rows_of_several_parts_are_added_up() -> None:
    """Those of one part too: a word may be in a batch many times."""
    one = TableRows(torch.tensor([7, 2, 7]), torch.tensor([[1.0, 10], [2, 20], [3, 30]]))
    other = TableRows(torch.tensor([9, 2]), torch.tensor([[4.0, 40], [5, 50]]))
    ids, values = add_up([one, other])
    assert ids.tolist() == [2, 7, 9]
    assert values.tolist() == [[7, 70], [4, 40], [4, 40]]


def test_the_gradient_of_all_passes_is_taken_once() -> None:
    layer = nn.Embedding(5, 2)
    sparse_tables(layer)
    for words in ([3, 1, 3], [3]):
        layer(torch.tensor(words)).sum().backward()
    ids, values = take_gradient(layer.weight)
    assert ids.tolist() == [1, 3]
    assert values.tolist() == [[1, 1], [3, 3]]
    assert take_gradient(layer.weight).values.shape == (0, 2)


class Tied(nn.Module):
    """A table that is the output layer's too, and one that is not."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.tied, self.output = nn.Embedding(5, 2), nn.Linear(2, 5)
        self.output.weight = self.tied.weight
        if own:
            self.own = nn.Embedding(3, 2)


def test_only_tables_that_nothing_shares_are_sparse() -> None:
    """The gradient of another use would be dense."""
    model = Tied(own=True)
    tables = sparse_tables(model)
    names = [name for name, _ in model.named_parameters()]
    assert [names[number] for number in tables] == ["own.weight"]
    assert tables[names.index("own.weight")] is model.own.weight
    assert (model.own.sparse, model.tied.sparse) == (True, False)


@pytest.mark.parametrize("model", [Tied(own=False), nn.Linear(2, 2)])
def test_a_model_without_such_a_table_is_refused(model) -> None:
    with pytest.raises(
        UsageError, match=r"^strategy.sparse_rows=true .* no other layer shares.* none"
    ):
        sparse_tables(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case", "processes"),
    [
        *product(["tagging"], CASES, [3]),
        ("tagging", "3 colocated", 1),
        ("tagging", "2 central", 2),
        ("language", "3 central", 3),
        ("trees", "2 colocated", 2),
    ],
)
def test_they_are_all_reduce(name: str, case: str, processes: int) -> None:
    allreduce_checkpoint(name)  # before the threads, which would all make it
    for away in run_on_threads(
        processes, lambda comm: difference_from_allreduce(comm, name, CASES[case])
    ):
        assert away < 1e-10


class TwoTables(Tagger):
    """A tagger with another table, which says of each word what its tags are."""

    def __init__(self, vocabulary_size: int, tags: int, **sizes: Any) -> None:
        super().__init__(vocabulary_size, tags, **sizes)
        self.likely = nn.Embedding(vocabulary_size, tags)

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch) + self.likely(batch.tokens)


@pytest.mark.slow
def test_a_model_with_two_tables(monkeypatch) -> None:
    """Of rows of different widths."""
    monkeypatch.setattr("lsgd.workloads.tagging.Tagger", TwoTables)
    expected = make_steps(make_learner(SingleComm(), "tagging", ALLREDUCE), 7)

    def process(comm: ThreadComm) -> Any:
        learner = make_learner(comm, "tagging", sparse_row_servers(2))
        assert len(learner.strategy.tables) == 2
        return make_steps(learner, 7)

    for saved in run_on_threads(3, process):
        assert distance(saved, expected) < 1e-10


def test_a_run_changes_between_rows_and_whole_gradients() -> None:
    allreduce_checkpoint("tagging")
    for distances in run_on_threads(
        3, lambda comm: resumed_differences(comm, "tagging", sparse_row_servers(2))
    ):
        assert len(distances) == 2
        assert max(distances.values()) < 1e-10


@pytest.mark.slow
def test_half_precision_is_on_the_wire_of_rows_too() -> None:
    word = "gradient_compression=fp16"
    sparse_row_runs.recipe("tagging", word)

    def process(comm: ThreadComm, strategy: Any) -> Any:
        return make_steps(make_learner(comm, "tagging", strategy, word), 7)

    dense = replace(sparse_row_servers(2), sparse_rows=False)
    saved = [
        run_on_threads(3, lambda comm, s=s: process(comm, s))[0]
        for s in (sparse_row_servers(2), dense)
    ]
    assert distance(*saved) < 1e-10
    exact = replace(allreduce_checkpoint("tagging", 7), fingerprint=saved[0].fingerprint)
    assert distance(saved[0], exact) > 1e-7


class Counting(ThreadComm):
    """A process that counts the bytes that it sends."""

    sent = 0

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Any:
        self.sent += tensor.nbytes
        return super().start_send(tensor, receiver, tag)


@pytest.mark.parametrize("processes", [2, 3])
def test_the_embedding_of_ptb_takes_a_twentieth_of_the_bytes(
    processes, monkeypatch, capsys
) -> None:
    """Both ways together, and a row says so: all that was sent in the step but what is of other
    parameters, with the two and three numbers behind these."""
    monkeypatch.setattr("helpers.threaded.ThreadComm", Counting)
    sparse_row_runs.recipe("language", *PTB)

    def process(comm: Counting) -> int:
        learner = make_learner(comm, "language", sparse_row_servers(), *PTB)
        make_steps(learner, 1)
        sent = sum(comm.gather_objects(comm.sent))
        assert learner.strategy.step_metrics()["wire_bytes"] == sent
        others = sum(each.numel() for each in learner.model.parameters()) - TABLE
        return sent - pushing * 4 * (2 * others + 2 + 3)

    pushing = processes - 1  # the last process has the server
    rows, *_ = run_on_threads(processes, process)
    whole = pushing * 4 * 2 * TABLE
    with capsys.disabled():
        print(f"\n{processes} processes: {rows:,} bytes in rows, {whole:,} in whole gradients")
    assert 20 * rows <= whole


class NotANumber(Learner):
    """A learner on which a row of the embedding has a gradient that is none, in one step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.model.register_forward_hook(self._poison)

    def _poison(self, model: Any, _: Any, scores: Tensor) -> Tensor:
        if self.next_step == 6 and self.comm.rank == 0:
            scores = scores + (0 * model.embedding(torch.tensor([3]))[0, 0]).sqrt()
        return scores


def test_a_row_that_is_no_number_stops_all_after_the_same_step() -> None:
    sparse_row_runs.recipe("tagging")

    def process(comm: ThreadComm) -> tuple[str, int]:
        learner = make_learner(comm, "tagging", sparse_row_servers(2), kind=NotANumber)
        with pytest.raises(DivergedError, match=r"gradient of step 6 is not finite") as error:
            make_steps(learner, 14)
        return str(error.value), learner.next_step

    assert len(set(run_on_threads(3, process))) == 1


class LargeTensors(TorchDispatchMode):
    """The operations that make something as large as a table, other than the table itself."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table, self.seen = table, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor) and each.layout == torch.strided:
                own = each.untyped_storage().data_ptr() != self.table.untyped_storage().data_ptr()
                if own and each.numel() >= self.table.numel():
                    self.seen.append(str(func))
        return out


@pytest.mark.parametrize(
    "strategy", [sparse_row_servers(2), replace(sparse_row_servers(2), sparse_rows=False)]
)
def test_no_step_goes_over_a_whole_table(strategy) -> None:
    words = ("data.words=3000",)
    sparse_row_runs.recipe("tagging", *words)

    def process(comm: ThreadComm) -> list[str]:
        learner = make_learner(comm, "tagging", strategy, *words)
        tasks = list(learner.strategy.tasks(0, [0, 1]))
        batches = learner.workload.inputs().train(
            each for task in tasks for each in task.micro_batches
        )
        with LargeTensors(learner.model.embedding.weight) as large:
            for task in tasks:
                train_step(learner, task, batches)
        return large.seen

    for seen in run_on_threads(2, process):
        assert bool(seen) != strategy.sparse_rows


def test_virtual_time_is_that_of_whole_tables() -> None:
    sparse_row_runs.recipe("tagging")
    seconds = []
    for sparse in (True, False):
        learner = make_learner(
            SingleComm(), "tagging", replace(sparse_row_servers(2), sparse_rows=sparse)
        )
        make_steps(learner, 3)
        seconds.append(learner.strategy.step_metrics()["virtual_seconds"])
    assert seconds[0] == seconds[1]
