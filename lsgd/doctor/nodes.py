"""The comparison of a job's nodes by their measured figures, which names slow and broken nodes.

A figure is judged against the median of all nodes, since nobody knows what a cluster's hardware
should give, but equal nodes should give the same. Nothing here measures, or needs torch.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lsgd.job.launcher import Launch, hostnames, tasks_per_node
from lsgd.tables import markdown_table

SLOW_MATRIX = 0.85
"""The share of the median rate of matrix products below which a node is slow.

All processes wait for the slowest one, so such a node makes the run slower by 1 / 0.85, a sixth.
GPUs of one type differ by some percent among each other, and noise of 5 % cannot reach it.
"""
SLOW_LINK = 0.7
"""The share of the median speed of all-reduces below which a link or a node's own is slow.

Other jobs share the network and take some of it for a while. A link that has lost half of its
lanes, its second port or its right protocol is at 0.5 or below.
"""
SLOW_DISK = 0.5
"""The share of the median rate of reading below which a node's disk is slow.

Files differ in size and in what a server has cached, so a rate varies more than others. Reading is
prefetched, so a disk of half the rate is the first that a run may notice.
"""
CLOCK_SECONDS = 1.0
"""The difference between two clocks from which on it is a fault, in seconds.

Nodes that synchronize their clocks differ by milliseconds; at a second they do not. Then logs of
several nodes have no order, and credentials such as those of munge expire early.
"""

UNKNOWN = "unknown"
"""The name of the nodes of processes that have not joined, where no list of the launcher has it."""


@dataclass(frozen=True)
class NodeFigures:
    """The measured figures of one node of a job; None where a figure is missing."""

    host: str
    ranks: tuple[int, ...]
    """The ranks of its processes, those that have not answered included."""
    gflops: float | None = None
    """The rate of matrix products of its slowest process."""
    slowest: int | None = None
    """The rank of that process."""
    inside_mb_per_s: float | None = None
    """The speed of an all-reduce among the processes of this node."""
    disk_mb_per_s: float | None = None
    """The rate of reading files of data.root."""
    clock_ahead: float | None = None
    """The seconds by which its clock is ahead of process 0's."""
    clock_error: float = 0.0
    """The largest error of that number: half the time of the messages by which it was measured."""
    problems: tuple[str, ...] = ()
    """The failures of this node, a sentence each."""
    failed_checks: Mapping[str, str] = field(default_factory=dict)
    """The checks of the doctor that fail on it, by name, each with what was found and the fix."""


@dataclass(frozen=True)
class Link:
    """The speed of an all-reduce among the processes of two nodes that are neighbours in a ring."""

    first: str
    second: str
    mb_per_s: float | None
    """None if it did not end, or its sum was wrong."""
    problem: str = "did not end"
    """The reason of a missing speed."""


@dataclass(frozen=True)
class NodeFinding:
    """One reason why a node, or the link between two nodes, is slow or broken."""

    hosts: tuple[str, ...]
    """The node, or both ends of the link, first the one that is nearer to process 0."""
    text: str


def ring_rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Return the links of a ring of nodes in rounds, in each of which a node has one link at most.

    >>> ring_rounds(4), ring_rounds(3), ring_rounds(2), ring_rounds(1)
    ([[(0, 1), (2, 3)], [(1, 2), (3, 0)]], [[(0, 1)], [(1, 2)], [(2, 0)]], [[(0, 1)]], [])
    """
    if nodes < 3:
        return [[(0, 1)]][: nodes - 1]
    links = [(node, (node + 1) % nodes) for node in range(nodes)]
    # In a ring of an odd number of nodes the last link meets one of either round.
    last = [[links.pop()]] if nodes % 2 else []
    return [links[::2], links[1::2], *last]


def judge_nodes(nodes: Sequence[NodeFigures], links: Sequence[Link]) -> list[NodeFinding]:
    """Return what is slow or broken among these nodes and links, node by node, links last."""
    medians = {name: _median(nodes, value) for name, (value, *_) in _FIGURES.items()}
    slow_nodes, slow_links = _judge_links(links)
    findings = []
    for node in nodes:
        texts = list(node.problems)
        for name, (value, unit, limit) in _FIGURES.items():
            mine, median = value(node), medians[name]
            if mine is not None and median and mine < limit * median:
                texts.append(_below(f"{name}{_culprit(node, name)}", mine, median, unit))
        ahead = node.clock_ahead
        if ahead is not None and abs(ahead) - node.clock_error > CLOCK_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            texts.append(f"its clock is {abs(ahead):.1f} s {side} that of process 0")
        texts += [
            f"{name}: {found}"
            for name, found in node.failed_checks.items()
            if name not in common_failures(nodes)
        ]
        texts += slow_nodes.get(node.host, [])
        findings += [NodeFinding((node.host,), text) for text in texts]
    return findings + slow_links


def common_failures(nodes: Sequence[NodeFigures]) -> dict[str, str]:
    """Return the doctor's checks that fail on more than half of the nodes, with one's finding.

    They say nothing about a single node: the run does without them, or fails on every node.
    """
    found: dict[str, str] = {}
    for node in nodes:
        found = {**node.failed_checks, **found}
    counts = {name: sum(name in node.failed_checks for node in nodes) for name in found}
    return {name: text for name, text in found.items() if 2 * counts[name] > len(nodes)}


def culprits(findings: Sequence[NodeFinding], first: str) -> list[str]:
    """Return the nodes to leave out, in the order of the findings; `first` hosts process 0.

    Of a slow link between two sound nodes it is one end, which is not the first node if possible.
    """
    bad = list(dict.fromkeys(each.hosts[0] for each in findings if len(each.hosts) == 1))
    for each in findings:
        if not set(each.hosts) & set(bad):
            bad.append(next((host for host in each.hosts[::-1] if host != first), first))
    return bad


def node_table(nodes: Sequence[NodeFigures], links: Sequence[Link]) -> str:
    """Format the figures of all nodes, and their medians, as a Markdown table."""
    to_next = {link.first: link.mb_per_s for link in links}
    head = ["node", "processes", "GFLOP/s", "inside", "next", "disk", "clock"]
    rows = [
        [
            node.host,
            _ranges(node.ranks),
            *(_shown(value(node)) for value, *_ in list(_FIGURES.values())[:2]),
            _shown(to_next.get(node.host)),
            _shown(node.disk_mb_per_s),
            "–" if node.clock_ahead is None else f"{node.clock_ahead:+.3f}",
        ]
        for node in nodes
    ]
    medians = [_median(nodes, value) for value, *_ in _FIGURES.values()]
    speeds = [link.mb_per_s for link in links if link.mb_per_s is not None]
    medians.insert(2, statistics.median(speeds) if speeds else None)
    return markdown_table(head, [*rows, ["median", "", *map(_shown, medians), ""]])


def expected_hosts(launch: Launch, hosts: str, environment: Mapping[str, str]) -> list[str] | None:
    """Return the node of each rank as the launcher has planned it, or None if that is unknown.

    `hosts` is the value of the launcher's --hosts, or empty. Slurm's list counts if every process
    belongs to the step that it describes.

    >>> expected_hosts(Launch("mpirun", world_size=3), "a:2,b:1", {})
    ['a', 'a', 'b']
    """
    pairs = [(host, int(slots)) for host, _, slots in (h.rpartition(":") for h in _split(hosts))]
    step = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    if launch.launcher == "srun" and all(name in environment for name in step):
        names, tasks = (environment[name] for name in step)
        pairs = list(zip(hostnames(names), tasks_per_node(tasks), strict=True))
    found = [host for host, slots in pairs for _ in range(slots)]
    return found if len(found) == launch.world_size else None


def network_name(host: str) -> str:
    """Return the name by which other nodes reach a host of --hosts, which may have a user for ssh.

    >>> network_name("me@a"), network_name("a")
    ('a', 'a')
    """
    return host.rpartition("@")[2]


def exclusion(bad: Sequence[str], hosts: str, excluded: str, *, is_slurm: bool) -> str:
    """Return what to write to start the job without these nodes; empty if no option does that.

    `hosts` and `excluded` are the values of the launcher's --hosts and --exclude, or empty.

    >>> exclusion(["b"], "a:8,b:8,c:8", "", is_slurm=False)
    '--hosts a:8,c:8'
    >>> exclusion(["n3"], "", "n[1-2]", is_slurm=True)
    '--exclude=n[1-2],n3'
    """
    if hosts:
        rest = [each for each in _split(hosts) if each.rpartition(":")[0] not in bad]
        return f"--hosts {','.join(rest)}" if 0 < len(rest) < len(_split(hosts)) else ""
    named = [name for name in bad if name != UNKNOWN]
    return f"--exclude={','.join([*_split(excluded), *named])}" if is_slurm and named else ""


FigureReader = Callable[[NodeFigures], float | None]

_FIGURES: dict[str, tuple[FigureReader, str, float]] = {
    "matrix product": (lambda node: node.gflops, "GFLOP/s", SLOW_MATRIX),
    "all-reduce inside": (lambda node: node.inside_mb_per_s, "MB/s", SLOW_LINK),
    "disk": (lambda node: node.disk_mb_per_s, "MB/s", SLOW_DISK),
}
"""The figures of a node that are judged against the median: value, unit and limit."""


def _judge_links(links: Sequence[Link]) -> tuple[dict[str, list[str]], list[NodeFinding]]:
    """Return the findings of nodes whose links are all slow, and of single slow links.

    A node counts by its fastest link, since each link of a sound node to a slow one is slow too.
    With two nodes there is one link, which nothing can be compared with.
    """
    fastest: dict[str, float] = {}
    for link in links:
        for host in (link.first, link.second):
            fastest[host] = max(fastest.get(host, 0.0), link.mb_per_s or 0.0)
    median = statistics.median(fastest.values()) if fastest else 0.0
    slow = {host: speed for host, speed in fastest.items() if speed < SLOW_LINK * median}
    nodes = {
        host: [_below("all-reduce with either neighbour", speed, median, "MB/s")]
        for host, speed in slow.items()
    }
    between = []
    for link in links:
        if slow.keys() & {link.first, link.second}:
            continue
        text = ""
        if link.mb_per_s is None:
            text = f"the all-reduce between them {link.problem}"
        elif link.mb_per_s < SLOW_LINK * median:
            text = _below("all-reduce between them", link.mb_per_s, median, "MB/s")
        if text:
            between.append(NodeFinding((link.first, link.second), text))
    return nodes, between


def _below(what: str, value: float, median: float, unit: str) -> str:
    return f"{what} {_shown(value)} {unit}, {value / median:.2f} of the median {_shown(median)}"


def _culprit(node: NodeFigures, figure: str) -> str:
    named = figure == "matrix product" and node.slowest is not None and len(node.ranks) > 1
    return f" of process {node.slowest}" if named else ""


def _median(nodes: Sequence[NodeFigures], value: FigureReader) -> float | None:
    values = [each for each in map(value, nodes) if each is not None]
    return statistics.median(values) if values else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ranges(ranks: Sequence[int]) -> str:
    """Format ranks in short: first and last if they are consecutive, else all."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _split(names: str) -> list[str]:
    return [name for name in names.split(",") if name]
