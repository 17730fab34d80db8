"""The launches that the trees of a batch need, by three rules: the table in README.md.

    LSGD_DATA=FOLDER python results/2026-11-22-fold/launches.py

The rules that are not ours are those of tests/fold/test_stages.py, which counts calls by them.
"""

import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "fold"))
from test_stages import Listed, by_agenda, by_depth, by_stages, encode

from lsgd import paths
from lsgd.fold import Graph, merge
from lsgd.rules.sampler import epoch_order
from lsgd.tables import markdown
from lsgd.text.sst import read_trees

NETWORKS = {
    "leaves and nodes": (False, False),
    "with logits at every node": (False, True),
    "with words made of letters too": (True, True),
}
BATCH = 25

trees = [*read_trees(paths.data_root("sst") / "train.txt")]
order = epoch_order(len(trees), seed=0, epoch=0)
rows = []
for name, (letters, logits) in NETWORKS.items():
    graphs = [Graph.of(encode, tree, letters, logits) for tree in trees]
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
print(markdown(["network", "stages", "depth", "agenda"], rows))
