"""Parts of one's own: what is imported, what is refused with one sentence, and what is hashed."""

import inspect
import sys
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lsgd import parts
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.own_parts import KINDS, OPTIMIZER, SCHEDULE, OwnPart, import_part, imported_part

NUMBERS = count()
DECAY = """
from collections.abc import Sequence
from typing import Literal
import numpy as np

class Decay:
    def __init__(self, a: int, b: float = 1.5, kind: Literal["x", "y"] = "x", c=True,
                 many: Sequence[int] = (1, 2), maybe: float | None = None,
                 by_numpy: float = np.float64(0.5), count=np.int64(2)): ...
    def share(self, remaining): return remaining

class Base:
    def share(self, remaining): return remaining

def make(power: float = 2.0) -> Decay: return Decay(1)
def unknown(power: float = 2.0): return Decay(1)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty package of a new name, which can be imported."""
    folder = tmp_path / f"own_package_{next(NUMBERS)}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def decay(package: Path, name: str = "Decay", source: str = DECAY) -> OwnPart:
    """A decay in the module `decays` of a package, imported."""
    (package / "decays.py").write_text(source)
    return import_part(SCHEDULE, f"{package.name}.decays:{name}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import a_module_that_is_not_there", "there is no module a_module_that_is_not_there; "),
        ("raise ValueError('no licence')", r"decays raises ValueError \(no licence\); fix "),
        ("import sys; sys.exit(3)", r"decays raises SystemExit \(3\); fix "),
        ("def f(:", r"decays raises SyntaxError \("),
        ("class Decays: ...", "does not exist in .*; did you mean Decays?"),
        ("class Decay: ...", "has no method share; write a class that is one, or a function"),
        ("Decay = 3", "is not a class; write a class that is one"),
        ("def Decay(): raise RuntimeError", "is not a class; write a class that is one"),
        ("import subprocess; Decay = subprocess.run", "is not a class; write a class that is one"),
    ],
)
def test_a_broken_part_is_one_sentence(package: Path, source: str, message: str) -> None:
    """And nothing is called that is no part."""
    with pytest.raises(UsageError, match=rf"^schedule\.decay|schedule={package.name}") as refusal:
        decay(package, source=source)
    assert refusal.match(message)
    assert "\n" not in str(refusal.value)


def test_a_dot_in_place_of_the_colon_is_named() -> None:
    with pytest.raises(UsageError, match=r"write optim=a\.b:C for C of the module a\.b, or one"):
        load_recipe(["+recipe=digits", "optim=a.b.C"])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a_package_that_is_not_there.a:B", "there is no module a_package_that_is_not_there; inst"),
        ("subprocess:Popen", r"optim=subprocess:Popen is not a torch\.optim\.Optimizer; write a "),
        ("os.path", "optim=os.path is not an import path; write optim=package.module:Name"),
        ("math:nothing", "optim=math:nothing does not exist in math; write a name that math has"),
    ],
)
def test_what_is_no_optimizer_is_refused(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_part(OPTIMIZER, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs schedule\.options\.a, which has no default; .*options\.a=… \(a whole number"),
        ({"a": 1.5}, r"schedule\.options\.a=1.5 is not a whole number, which schedule="),
        ({"a": True}, "a=True is not a whole number"),
        ({"a": 1, "b": "x"}, "b=x is not a number"),
        ({"a": 1, "kind": "z"}, "kind=z is not one of x, y"),
        ({"a": 1, "c": 3}, "c=3 is not true or false"),
        ({"a": 1, "many": [1, "x"]}, "is not a list of whole numbers"),
        ({"a": 1, "many": 3}, "is not a list of whole numbers"),
        ({"a": 1, "kinds": "x"}, r"there is no key 'schedule\.options\.kinds' .*options\.kind\?"),
        ({"a": 1, "zzz": 3}, "its options are a, b, kind, c, many, maybe"),
        ({"a": 1, "b": {"x": 1}}, "is not a number"),
    ],
)
def test_wrong_options_are_refused(package: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decay(package).completed(options)


def test_options_are_completed_by_their_defaults(package: Path) -> None:
    """A default that a recipe cannot hold, such as None, stays the part's own."""
    part = decay(package)
    completed = {"a": 3, "b": 2, "kind": "x", "c": True, "many": [1, 2]}
    completed |= {"by_numpy": 0.5, "count": 2}
    assert part.completed({"a": 3, "b": 2}) == completed
    assert part.completed({"a": 3, "maybe": 1.0})["maybe"] == 1.0
    assert part.keywords({"a": 3, "many": [4]}) == {"a": 3, "many": (4,)}
    found = part.completed({"a": 3})
    assert (type(found["by_numpy"]), type(found["count"])) == (float, int)
    assert part.completed(found) == found


def test_a_function_says_what_it_makes(package: Path) -> None:
    assert decay(package, "make").completed({}) == {"power": 2.0}
    with pytest.raises(
        UsageError, match="is not a class; write a class that is one, or a function"
    ):
        decay(package, "unknown")


def test_the_hash_is_of_the_module_and_what_it_imports_of_its_package(package: Path) -> None:
    """Also of the packages around it, and of a relative import within a function; of no other."""
    (package / "inner").mkdir()
    for name in ("near", "inner/__init__", "inner/deep", "far", "unused"):
        (package / f"{name}.py").write_text(f"# {name}\n")
    (package / "near.py").write_text("from . import inner\ndef f(): from .far import g\n")
    source = f"import json\nfrom {package.name} import near\n{DECAY}"

    def digest() -> str:
        for name in [each for each in sys.modules if each.startswith(package.name)]:
            del sys.modules[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lsgd.own_parts._imported", {})
            return decay(package, source=source).source

    first = digest()
    assert digest() == first
    for name, counts in {
        "near": True, "inner/__init__": True, "far": True, "__init__": True, "unused": False,
        "inner/deep": False,
    }.items():  # fmt: skip
        file = package / f"{name}.py"
        before = file.read_text()
        file.write_text(f"{before}# changed\n")
        assert (digest() != first) == counts, name
        file.write_text(before.replace("\n", "\r\n"))
        assert digest() == first, name
    source += "# changed"
    assert digest() != first


def test_what_no_command_line_names_is_not_imported(package: Path) -> None:
    """Only if the package declares it as a part when it is installed."""
    (package / "decays.py").write_text(DECAY)
    path = f"{package.name}.decays:Decay"
    with pytest.raises(UsageError, match=f"^schedule={path} is code .* to load_recipe in the same"):
        imported_part(SCHEDULE, path, "")
    assert package.name not in sys.modules
    installed = package.parent / "own-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[lsgd.schedule]\nmine = {path}\n")
    with pytest.raises(UsageError, match=r"has changed since the recipe was written \(source abc"):
        imported_part(SCHEDULE, path, "abc")
    assert imported_part(SCHEDULE, path, decay(package).source).path == path


def test_what_parts_are_written_with_stays() -> None:
    """Packages of others have these names: what is here may grow, and nothing of it change."""
    interfaces = {
        parts.Augmentation: {"augment": ["images", "examples", "epoch"]},
        parts.Inputs: {"columns": [], "train": ["passes"], "evaluation": ["passes"]},
        parts.LrDecay: {"share": ["remaining"]},
        parts.ImageMetric: {"counts": ["logits", "labels"], "value": ["counts"]},
        parts.OwnWorkload: {
            "make_network": [],
            "open_inputs": [],
            "loss": ["model", "batch", "each"],
            "metrics": ["loss", "counts"],
            "evaluation_examples": ["split"],
            "example_order": ["epoch"],
            "evaluation_mode": ["model", "inputs"],
            "evaluation_micro_batches": ["split", "rank", "world_size"],
            "carried_states": ["model", "hosted", "comm"],
            "network": [],
            "inputs": [],
        },
    }
    for interface, methods in interfaces.items():
        public = {name: each for name, each in vars(interface).items() if name[0] != "_"}
        functions = {name for name, each in public.items() if inspect.isfunction(each)}
        assert functions == methods.keys()
        for name, arguments in methods.items():
            assert [*inspect.signature(getattr(interface, name)).parameters][1:] == arguments
    names = {"metric_names", "count_names", "evaluation_sets", "example_weights"}
    assert {*inspect.get_annotations(parts.OwnWorkload)} == names
    assert [*inspect.signature(parts.OwnWorkload).parameters] == ["recipe", "device"]
    of_micro_batch = {"epoch", "examples", "workers", "step", "split", "side"}
    of_micro_batch |= {"crop_ratio", "aspect"}
    assert of_micro_batch == {each.name for each in fields(parts.MicroBatch)}
    assert [*inspect.signature(parts.uniforms).parameters] == ["examples", "seed", "epoch", "draw"]
    assert {
        each.choice: (each.entry_point_group, each.required, each.optional) for each in KINDS
    } == {
        "optim": ("lsgd.optim", ("params",), ("lr", "weight_decay")),
        "model": ("lsgd.model", ("classes",), ("channels", "image_size")),
        "inputs": ("lsgd.inputs", ("data",), ("seed", "device")),
        "schedule": ("lsgd.schedule", (), ()),
        "data.augmentation": ("lsgd.augmentation", (), ("seed", "data")),
        "data.workload": ("lsgd.workload", ("recipe", "device"), ()),
        "metric.name": ("lsgd.metric", (), ("classes",)),
    }
