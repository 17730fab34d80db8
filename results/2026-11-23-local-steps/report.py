"""The table and the figure of what study.py has trained, as far as it has come.

    LSGD_DATA=… python report.py RUNS

writes runs.json and error.png beside this file, and prints the table. An arm whose search has not
ended, or that lacks a seed, is in none of them.
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from study import ROUNDS, RULES, SEARCH, SEEDS, best, error, folder, grid, rows

from lsgd.report.drawing import BLUE, RED
from lsgd.tables import markdown_table

HERE = Path(__file__).parent


def megabytes(runs: Path, rule: str, steps: int, at: int) -> float:
    """What a worker gives to exchanges in a run, in 10^6 bytes."""
    last = [row for row in rows(folder(runs, rule, steps, at, SEARCH)) if row["kind"] == "train"]
    return last[-1]["exchanged_bytes"] * last[-1]["step"] / 1e6


def measured(runs: Path, rule: str, steps: int) -> dict[str, object] | None:
    """What came of an arm, or None if it is not through."""
    tried = grid(runs, rule, steps)
    if (at := best(tried)) is None:
        return None
    errors = [error(folder(runs, rule, steps, at, seed)) for seed in SEEDS]
    if None in errors:
        return None
    return {
        "rule": rule,
        "steps": steps,
        "search": {f"{10 ** (i / 2):.2g}": value for i, value in tried.items()},
        "lr": f"{10 ** (at / 2):.2g}",
        "errors": errors,
        "megabytes": round(megabytes(runs, rule, steps, at), 2),
    }


def draw(arms: list[dict[str, object]]) -> None:
    """The errors of seeds that the search has not seen, against what was exchanged."""
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for rule, colour, marker in zip(RULES, (BLUE, RED), "os", strict=True):
        own = [arm for arm in arms if arm["rule"] == rule]
        x = [arm["megabytes"] for arm in own]
        axes.plot(x, [statistics.mean(arm["errors"]) for arm in own], color=colour, lw=1)
        for seed, _ in enumerate(SEEDS):
            label = rule if seed == 0 else None
            y = [arm["errors"][seed] for arm in own]
            axes.plot(x, y, marker, color=colour, ms=5, mfc="none", label=label)
    for arm in arms:
        if arm["rule"] == min(RULES, key=[*RULES].index):
            axes.annotate(
                f"H {arm['steps']}",
                (arm["megabytes"], 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=8,
            )
    axes.margins(y=0.12)  # or a point would lie on a name
    axes.set_xscale("log")
    axes.set_xlabel("MB that a worker gives in the run")
    axes.set_ylabel("test error, %")
    axes.legend(frameon=False)
    figure.savefig(HERE / "error.png", dpi=150)


def main(runs: Path) -> None:
    """Write and print all."""
    found = [measured(runs, rule, steps) for rule in RULES for steps in sorted(ROUNDS)]
    arms = [arm for arm in found if arm]
    (HERE / "runs.json").write_text("[\n" + ",\n".join(map(json.dumps, arms)) + "\n]\n")
    table = []
    for arm in arms:
        tried = ", ".join(f"{lr}: {value:.2f}" for lr, value in arm["search"].items())
        errors = ", ".join(f"{value:.2f}" for value in arm["errors"])
        cells = [arm["rule"], arm["steps"], arm["megabytes"], tried, arm["lr"], errors]
        table.append([str(cell) for cell in cells])
    head = ["", "H", "MB", "search, seed 0 (lr: error, %)", "lr", "error, %, seeds 1 and 2"]
    print(markdown_table(head, table))
    draw(arms)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
