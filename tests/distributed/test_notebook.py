"""The notebook of the tutorials runs, and what is stored of it is a run of all its cells in order.

    python -m nbconvert --to notebook --execute --inplace docs/tutorials/notebook.ipynb

stores a new one.
"""

from pathlib import Path
from typing import Any

import pytest
from helpers.pages import REPOSITORY

pytestmark = [
    pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow, pytest.mark.docs
]  # fmt: skip
NotebookNode = Any  # of nbformat, which need not be installed
NOTEBOOK = REPOSITORY / "docs/tutorials/notebook.ipynb"
PATIENCE = 1200
"""Seconds that a cell may take."""


@pytest.fixture
def stored() -> NotebookNode:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def programs(notebook: NotebookNode) -> list[NotebookNode]:
    """Its cells of code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def in_order(notebook: NotebookNode) -> bool:
    """Were all cells executed once, from the first to the last, in a kernel of their own?"""
    counts = [cell.execution_count for cell in programs(notebook)]
    return counts == list(range(1, len(counts) + 1))


def errors(notebook: NotebookNode) -> list[str]:
    outputs = [output for cell in programs(notebook) for output in cell.outputs]
    return [output.evalue for output in outputs if output.output_type == "error"]


def kinds(notebook: NotebookNode) -> list[list[str]]:
    """What each cell has put out: text, figures."""
    return [
        sorted({each for output in cell.outputs for each in output.get("data", ["text"])})
        for cell in programs(notebook)
    ]


def test_it_is_stored_as_it_was_executed(stored: NotebookNode) -> None:
    import nbformat

    nbformat.validate(stored)
    assert in_order(stored)
    assert errors(stored) == []
    assert any("image/png" in each for each in kinds(stored))


def test_every_cell_runs(stored: NotebookNode, tmp_path: Path, monkeypatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    anew = nbformat.from_dict({**stored, "cells": [_cleared(cell) for cell in stored.cells]})
    NotebookClient(anew, timeout=PATIENCE, resources={"metadata": {"path": tmp_path}}).execute()
    assert in_order(anew)
    assert errors(anew) == []
    assert kinds(anew) == kinds(stored)
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]


def _cleared(cell: NotebookNode) -> NotebookNode:
    return cell | {"outputs": [], "execution_count": None} if cell.cell_type == "code" else cell
