"""The launches that the trees of a batch need, by three rules: the table in README.md.

    LSGD_DATA=FOLDER python results/2026-11-22-fold/launches.py

The calls of a tree, and our own rule as a formula, are those of tests/fold/test_stages.py.
"""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "fold"))
from test_stages import Calls, Listed, by_stages, encode

from lsgd import paths
from lsgd.fold import Graph, merge
from lsgd.rules.sampler import epoch_order
from lsgd.tables import markdown_table
from lsgd.text.sst import read_trees

NETWORKS = {
    "leaves and nodes": (False, False),
    "with logits at every node": (False, True),
    "with words made of letters too": (True, True),
}
BATCH = 25


def by_depth(calls: Calls) -> int:
    """TensorFlow Fold's launches (Looks et al. 2017, section 2)."""
    levels: list[int] = []
    for _, givers in calls:
        levels.append(1 + max((levels[giver] for giver in givers), default=-1))
    return len({(op, level) for (op, _), level in zip(calls, levels, strict=True)})


def by_agenda(calls: Calls) -> int:
    """DyNet's launches (Neubig et al. 2017): of what is ready, the kind of least mean depth."""
    levels: list[int] = []
    takers = defaultdict(list)
    for number, (_, givers) in enumerate(calls):
        levels.append(1 + max((levels[giver] for giver in givers), default=-1))
        for giver in givers:
            takers[giver].append(number)
    left = [len(givers) for _, givers in calls]
    waiting = defaultdict(set)
    ready = defaultdict(list)
    for number, (op, givers) in enumerate(calls):
        waiting[op].add(number)
        if not givers:
            ready[op].append(number)
    mean = {op: statistics.fmean(levels[number] for number in mine) for op, mine in waiting.items()}
    launches = 0
    while any(ready.values()):
        op = min((op for op, numbers in ready.items() if numbers), key=mean.__getitem__)
        made, ready[op] = ready[op], []
        launches += 1
        waiting[op] -= set(made)
        if waiting[op]:
            mean[op] = statistics.fmean(levels[number] for number in waiting[op])
        for number in made:
            for taker in takers[number]:
                left[taker] -= 1
                if not left[taker]:
                    ready[calls[taker][0]].append(taker)
    return launches


trees = [*read_trees(paths.data_root("sst") / "train.txt")]
order = epoch_order(len(trees), seed=0, epoch=0)
rows = []
for name, (letters, logits) in NETWORKS.items():
    graphs = [Graph.record(encode, tree, letters, logits) for tree in trees]
    counts = []
    for begin in range(0, len(order), BATCH):
        batch = order[begin : begin + BATCH]
        listed = Listed()
        for tree in batch:
            encode(listed, trees[tree], letters, logits)
        launches = merge([graphs[tree] for tree in batch]).launches
        assert launches == by_stages(listed.calls)
        counts.append((launches, by_depth(listed.calls), by_agenda(listed.calls)))
    means = map(statistics.fmean, zip(*counts, strict=True))
    rows.append([name, *(f"{mean:.1f}" for mean in means)])
print(
    f"SST, {len(order)} training trees in batches of {BATCH}, an epoch of seed 0: mean launches\n"
)
print(markdown_table(["network", "stages", "depth", "agenda"], rows))
