"""Public classes and type aliases of lsgd that have one name and two meanings: `make layers` asks.

    python tests/suite/homonyms.py

One thing, one word: two modules of lsgd must not each define a class, or an alias of a type, of the
same name, so that a name in a traceback, a question or a search means one thing.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "lsgd"


def public_names(source: str) -> Iterator[str]:
    """The classes, and the names beginning like one that are assigned to, on a module's top level.

    >>> [*public_names("class Row: pass\\nclass _Own: pass\\nStep = dict\\nSTEPS = 3\\nrows = 4")]
    ['Row', 'Step']
    """
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def homonyms(root: Path = ROOT) -> dict[str, list[str]]:
    """The names that more than one module below the folder defines, with these modules."""
    modules = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for name in public_names(path.read_text(encoding="utf-8")):
            modules[name].append(str(path.relative_to(root.parent)))
    return {name: paths for name, paths in sorted(modules.items()) if len(paths) > 1}


if __name__ == "__main__":
    shared = homonyms()
    for name, paths in shared.items():
        print(f"{name} is defined in {' and in '.join(paths)}: give each a name of its own")
    print(f"{len(shared)} homonyms")
    sys.exit(bool(shared))
