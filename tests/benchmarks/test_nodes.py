"""What benchmarks.nodes, node_failures and many_processes compute; their jobs need root."""

from pathlib import Path

import pytest

from benchmarks.many_processes import count_calls
from benchmarks.node_failures import sentences
from benchmarks.nodes import planned_seconds

TRACE = """\
openat(AT_FDCWD</w>, "/usr/before.py", O_RDONLY) = 3</usr/before.py>
access("/marked", F_OK)                 = -1 ENOENT (No such file or directory)
openat(AT_FDCWD</w>, "/usr/a.py", O_RDONLY|O_CLOEXEC) = 3</usr/a.py>
openat(AT_FDCWD</w>, "/usr/b.py", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
newfstatat(3</usr/a.py>, "", {st_mode=S_IFREG|0644, st_size=9, ...}, AT_EMPTY_PATH) = 0
newfstatat(AT_FDCWD</w>, "/f/run8/config.yaml", {st_mode=S_IFREG|0644, ...}, 0) = 0
openat(AT_FDCWD</w>, "/f/images8/val.index.npy", O_RDONLY) = 4</f/images8/val.index.npy>
connect(5<socket:[1]>, {sa_family=AF_INET, sin_port=htons(77), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
sendto(5<socket:[1]>, ""..., 9, MSG_NOSIGNAL, NULL, 0) = 9
connect(6<socket:[2]>, {sa_family=AF_INET, sin_port=htons(78), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
sendto(6<socket:[2]>, ""..., 5, MSG_NOSIGNAL, NULL, 0) = 5
"""  # noqa: E501


def test_calls_count_from_the_mark_by_what_they_are_for() -> None:
    assert count_calls(TRACE, Path("/f"), "/marked", 77) == {
        "program: opens": 1,
        "program: opens that fail": 1,
        "run folder: look-ups": 1,
        "index: opens": 1,
        "network: connections to the store": 1,
        "network: connections to other processes": 1,
        "network: requests to the store": 1,
        "network: bytes to the store": 9,
    } | {"program: look-ups": 1}  # the mark itself


def test_an_all_reduce_of_the_plan_takes_the_bytes_of_a_ring() -> None:
    """Of two nodes each sends as many bytes as there are; gloo announces each message before."""
    for library, latencies in (("torch.distributed (gloo)", 4), ("Horovod (MPI)", 2)):
        assert planned_seconds(library, 1_000_000, 2, 8, 0.0) == pytest.approx(1.0)
        seconds = planned_seconds(library, 1_000_000, 2, 8, 0.125)
        assert seconds == pytest.approx(1.0 + 0.125 * latencies)


def test_sentences_are_those_of_lsgd_and_of_the_launchers_error() -> None:
    log = """\
[default0]:lsgd: process 1 on node1: no
[default0]:step 5/150000  epoch 1.00
[default0]:lsgd: process 1 on node1: no
  traceback : Signal 9 (SIGKILL) received by PID 42
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed
"""
    assert sentences(log) == [
        "process 1 on node1: no",
        "Signal 9 (SIGKILL) received by PID 42",
        "RendezvousConnectionError: The connection has failed",
    ]
