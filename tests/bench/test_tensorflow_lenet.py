"""What the process of TensorFlow's cluster needs; test_strategies.py has it train."""

import ast
import sys

from lsgd.bench.strategies import SCRIPT


def test_it_needs_nothing_of_lsgd() -> None:
    """Its Python has neither lsgd nor torch."""
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"numpy", "tensorflow"}
