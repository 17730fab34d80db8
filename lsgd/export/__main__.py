"""A trained network for other programs: `python -m lsgd.export CHECKPOINT --to FORM`.

    python -m lsgd.export runs/a --to torchvision    # a state dict: NAME-seedS-stepN.pth
    python -m lsgd.export runs/a --to safetensors    # the same tensors, and what they are of
    python -m lsgd.export runs/a --to onnx           # a graph for any number of images
    python -m lsgd.export runs/a --to hub            # a folder for the Hugging Face Hub
    python -m lsgd.export runs/a --to hub --push OWNER/NAME    # … which is then uploaded

The network is the one that the run was evaluated as: with averaged weights where it averages them,
and with BN statistics measured on its training images where it measures them, as evaluation does;
only then the data has to be there. Nothing is overwritten.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import config
from lsgd.errors import Refused
from lsgd.export.libraries import check_export_libraries
from lsgd.export.network import FORMS, Exported, read_exported
from lsgd.files import new_folder, whole
from lsgd.job.command import Parser, run_alone


def export(options: argparse.Namespace) -> None:
    """Write what the options ask for, and say where it is and how it is loaded."""
    form, name = options.to, options.push
    if name is not None and form != "hub":
        raise Refused(f"--push uploads the folder of --to hub, and not --to {form}; write --to hub")
    check_export_libraries(form, push=name is not None)
    if name is not None:
        from lsgd.export.push import check_push

        check_push(name)
    if options.out:
        _check_new(options.out)
    exported = read_exported(options.checkpoint, options.words, form)
    recipe = exported.recipe
    default = f"{recipe.name}-seed{recipe.seed}-step{exported.saved.step}{FORMS[form]}"
    out = options.out or Path(default)
    _check_new(out)
    how = write(exported, form, out)
    print(f"{recipe.model.name} of {recipe.name}, {exported.evaluated_as}: {out}\n{how}")
    if name is not None:
        from lsgd.export.push import push

        print(push(out, name))


def write(exported: Exported, form: str, out: Path) -> str:
    """Write the file or folder, which is there whole or not at all; returns how it is used."""
    # Imported here, since each is of a library that the others do without.
    match form:
        case "torchvision":
            from lsgd.export.torchvision import write_state_dict as write_form
        case "safetensors":
            from lsgd.export.safetensors import write_safetensors as write_form
        case "onnx":
            from lsgd.export.onnx import write_onnx as write_form
        case "hub":
            from lsgd.export.hub import write_hub

            with new_folder(out) as folder:
                assert folder is not None
                return write_hub(exported, folder)
        case _:
            raise ValueError(form)
    try:
        with whole(out) as file:
            return write_form(exported, file)
    except OSError as error:
        raise Refused(f"{out} cannot be written ({error.strerror}); write --out PATH") from None


def _check_new(out: Path) -> None:
    if out.exists():
        raise Refused(f"{out} is there already, and is not overwritten; write another --out PATH")


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        "lsgd.export",
        __doc__,
        keys=config.field_keys,
        usage="python -m lsgd.export CHECKPOINT --to FORM [--out PATH] [key=value ...]",
    )
    parser.add_argument("checkpoint", type=Path, help="a run folder, or its checkpoint.pt")
    parser.add_argument("--to", required=True, choices=FORMS, help="the form")
    parser.add_argument("--out", type=Path, metavar="PATH", help="the file or folder to make")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder of --to hub there")
    parser.add_argument(
        "words", nargs="*", default=[], metavar="key=value", help="such as data.root=/data/imagenet"
    )
    return run_alone(lambda: export(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
