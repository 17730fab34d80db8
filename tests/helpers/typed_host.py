"""A program that uses `lsgd.api`; mypy checks it strictly."""

from pathlib import Path

from lsgd.api import (
    DivergedError,
    ExitError,
    PreemptedError,
    Recipe,
    Row,
    Run,
    Scores,
    UsageError,
    evaluate,
    load_recipe,
    read_runs,
    train,
)


def listen(row: Row) -> None:
    print(row["kind"])


def main(folder: Path) -> float:
    try:
        recipe: Recipe = load_recipe("+recipe=digits", f"run_dir={folder}")
        error: float = train(recipe, on_row=listen)
    except (UsageError, DivergedError, PreemptedError) as end:
        code: int = end.exit_code
        raise SystemExit(code) from end
    except ExitError:
        raise
    scores: dict[str, Scores] = evaluate(folder)
    runs: list[Run] = read_runs(folder)
    print(
        recipe.batch_size, recipe.fingerprint, recipe.lr(0), runs[0].epochs, scores["val"].metrics
    )
    return error
