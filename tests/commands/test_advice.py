"""What lsgd advises can be done: its commands exist, and the words that it advises are accepted."""

import ast
import contextlib
import importlib
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.usage_errors import usage_error

import lsgd
from lsgd.__main__ import command_names
from lsgd.launch.options import OPTIONS
from lsgd.prepare.__main__ import main as prepare
from lsgd.recipe.image_folder import prepare_command, read_skip_list

DATASETS = ("folder", "imagenet", "tiny-imagenet", "cifar10")
NESTED = ("prepare", "bench", "plan")
"""The commands whose first word may have options of its own."""
COMMAND = re.compile(r"(?:python -m lsgd\.|\blsgd )([a-z]+)\b((?:(?![`;,.]\s|[`;]|\n\n).)*)", re.S)


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts of a file, with {} where a value is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def help_of(*words: str) -> str:
    name, *rest = words
    package = importlib.import_module(f"lsgd.{name}")
    inside = hasattr(package, "__path__")
    module = importlib.import_module(f"lsgd.{name}.__main__") if inside else package
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        module.main([*rest, "--help"])
    return printed.getvalue()


def test_commands_that_texts_name_exist_with_their_options() -> None:
    found = 0
    of_launchers = set(OPTIONS) | {"--check", "--print", "--help"}
    for file in sorted(Path(lsgd.__file__).parent.rglob("*.py")):
        for text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            for name, rest in COMMAND.findall(text):
                if name not in command_names():
                    continue
                options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
                if name in ("launch", "study", "search", "supervise"):
                    options -= of_launchers
                first = shlex.split(rest.replace("'", ""))[:1] if name in NESTED else []
                inner = [word for word in first if word.islower() and word.isidentifier()]
                for option in options - {"--help"}:
                    assert option in help_of(name, *inner), f"{file.name}: lsgd {name} {rest}"
                    found += 1
    assert found > 30


IMAGENET = ("n01440764", "ILSVRC2012_img_train")
"""Archives of ImageNet, which are no shards."""


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("shards", ["none", "own", "of another tool", "in folders", *IMAGENET])
def test_what_prepares_a_dataset_exists(dataset: str, shards: str, tmp_path: Path) -> None:
    root = tmp_path / "my images"
    root.mkdir()
    if shards == "in folders":
        (root / "train/.cache").mkdir(parents=True)
        (root / "train/000000.tar").touch()
    elif shards in IMAGENET:
        (root / "train").mkdir()
        (root / f"train/{shards}.tar").touch()
        (root / f"{shards}.tar").touch()
    elif shards != "none":
        (root / "train-000000.tar").touch()
    if shards == "own":
        (root / "shards.json").touch()
    advised = prepare_command(
        dataset, root, tmp_path / "index" if dataset in DATASETS[:2] else None
    )
    python, _, module, *words = shlex.split(advised)
    assert (python, module) == ("python", "lsgd.prepare")
    options = {word for word in words if word.startswith("--")}
    assert options == ({"--shards"} if shards == "own" else {"--index"} & {*words})
    assert (words[0] == "index") == (shards in ("of another tool", "in folders"))
    assert all(option in help_of("prepare", words[0]) for option in options)
    assert str(root) in words


K8S = "launch k8s digits --kind mpijob --image i --claim c --print"
LONG = "a" * 60


@pytest.mark.parametrize(
    ("line", "advised", "then"),
    [
        ("launch local +recipe=digits --np 1 --print", "write digits",
         "launch local digits --np 1 --print"),
        ("launch torchrun digits --nproc-per-node 2 --print", "write --np 2",
         "launch torchrun digits --np 2 --print"),
        ("launch torchrun digits --np 4 --gpus 4 --print", "write one of them",
         "launch torchrun digits --gpus 4 --print"),
        ("launch mpirun bs9k --np 2 --print", "did you mean bs8k",
         "launch mpirun bs8k --np 2 --print"),
        ("launch torchrun digits --np 99 --print", "start 16 or fewer",
         "launch torchrun digits --np 16 --print"),
        (f"{K8S} --name {LONG}", "write --name with 54 or fewer", f"{K8S} --name {LONG[:54]}"),
        (f"{K8S} --nodes 2000 --name {LONG}", "with 51 or fewer", f"{K8S} --name {LONG[:51]}"),
        (f"{K8S} run_dir=~/a", "such as /lsgd/", f"{K8S} run_dir=/lsgd/a"),
        ("launch slurm digits --np 1 --print run_dir=a%j", "write another",
         "launch slurm digits --np 1 --print run_dir=a"),
        ("train --cfg bs8k", "write recipe=bs8k", "train --cfg +recipe=bs8k"),
        ("train --cfg +recipe=bs8k epoch=91", "did you mean epochs?",
         "train --cfg +recipe=bs8k epochs=91"),
        ("train --cfg +recipe=bs8k epochs=3", "in proportion write epochs=3 "
         "schedule.milestones=[1,2] schedule.warmup_epochs=0.17",
         "train --cfg +recipe=bs8k epochs=3 schedule.milestones=[1,2] schedule.warmup_epochs=0.17"),
        ("train --cfg +recipe=digits --seed 3", "write seed=3",
         "train --cfg +recipe=digits seed=3"),
        ("train --cfg +recipe=bs8k batch_size=4100",
         "write workers=128, or for 4100 workers=164 worker_batch=25",
         "train --cfg +recipe=bs8k workers=164 worker_batch=25"),
        ("train --cfg +recipe=bs8k data.skip=train/a/b=c.jpg", "'data.skip=[\"train/a/b=c.jpg\"]'",
         "train --cfg +recipe=bs8k 'data.skip=[\"train/a/b=c.jpg\"]'"),
        ("train --cfg +recipe=digits run_dir=~nobody-here/a", "or ./~nobody-here/a for",
         "train --cfg +recipe=digits run_dir=./~nobody-here/a"),
        ("train --cfg +recipe=digits run_dir=${a}", "write the value itself",
         "train --cfg +recipe=digits run_dir=a"),
        ("study +study=digits seeds=[0,0] --print --np 1", "seeds=5, seeds=[0..4] or seeds=[0,1]",
         "study +study=digits seeds=[0,1] --print --np 1"),
        ("search +search=digits --n-trials 2 --print --np 1", "write trials=2",
         "search +search=digits trials=2 --print --np 1"),
    ],
)  # fmt: skip
def test_the_words_that_are_advised_are_accepted(
    line: str,
    advised: str,
    then: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lsgd.study.__main__.cost_lines", lambda *_: [])  # which times a step
    name, *words = line.split()
    package = importlib.import_module(f"lsgd.{name}")
    inside = hasattr(package, "__path__")
    main = importlib.import_module(f"lsgd.{name}.__main__").main if inside else package.main
    assert advised in usage_error(main, capsys, *words)
    try:
        code = main(shlex.split(then)[1:])
    except SystemExit as end:
        code = end.code
    assert code in (0, None), capsys.readouterr().err


@pytest.mark.parametrize(
    ("dataset", "case"),
    [
        ("folder", "plain"), ("folder", "a class without images in val"),
        ("imagenet", "plain"), ("imagenet", "a further set"),
    ],
)  # fmt: skip
def test_the_advised_check_lists_the_image_to_skip(
    dataset: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of images of one's own, and of each set that is evaluated."""
    from helpers.folders import make_folder

    from lsgd.errors import InputFailedError
    from lsgd.inputs.decoding import explain_read_error
    from lsgd.inputs.index import ImageIndex, index_file
    from lsgd.rules.sampler import MicroBatch

    monkeypatch.setattr("lsgd.prepare.folder.print_suggestion", lambda *_: None)  # times a step
    root, options, split = make_folder(tmp_path / "own images"), list[str](), "val"
    if case != "plain":
        shutil.copytree(root / "val", root / "v2")
    if case == "a further set":
        options, split = ["--sets", "v2"], "v2"
    elif case != "plain":
        shutil.rmtree(root / "val/n02")
        options = ["--allow-empty-classes"]
    assert prepare(["folder", str(root), *options]) == 0
    for each in ("train", split):
        (root / each / "n00/gray.JPEG").write_bytes(b"none")
    index = ImageIndex(root, index_file(root, split))
    error = explain_read_error(
        InputFailedError("gray.JPEG"), MicroBatch(None, np.arange(1), split=split), index, dataset
    )
    advised = str(error).partition("`")[2].partition("`")[0]
    python, _, module, *words = shlex.split(advised)
    assert (python, module, words[-1]) == ("python", "lsgd.prepare", "--check")
    assert prepare(words) == 0
    listed = read_skip_list(root / "skip.txt")
    assert listed == {f"{each}/n00/gray.JPEG" for each in ("train", split)}
