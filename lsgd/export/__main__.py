"""Export a trained network for other programs: `python -m lsgd.export CHECKPOINT --to FORM`.

    python -m lsgd.export runs/a --to torchvision    # a state dict: NAME-seedS-stepN.pth
    python -m lsgd.export runs/a --to safetensors    # the same tensors, with metadata
    python -m lsgd.export runs/a --to onnx           # a graph for any number of images
    python -m lsgd.export runs/a --to hub            # a folder for the Hugging Face Hub
    python -m lsgd.export runs/a --to hub --push OWNER/NAME    # … which is then uploaded

The exported network is the one that the run evaluated. It has averaged weights if the recipe
averages them, and BN statistics measured on the training images if the recipe measures them; only
this measurement needs the data. Existing files are never overwritten.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import config, paths
from lsgd.errors import UsageError, writing_to
from lsgd.export.network import (
    FORMATS,
    ExportedNetwork,
    build_exported_network,
    load_for_export,
    write_safetensors,
    write_state_dict,
)
from lsgd.files import atomic_write, check_new_file, create_output_folder
from lsgd.installation import install_command, is_installed
from lsgd.job.command import Parser, run_alone

LIBRARIES = {
    "torchvision": (),
    "safetensors": ("safetensors",),
    "onnx": ("onnx", "onnxscript"),
    "hub": ("safetensors",),
    "push": ("huggingface_hub",),
}
"""The libraries that each format imports, and those of the upload."""


def check_export_libraries(export_format: str, *, push: bool) -> None:
    """Raise UsageError if a library of this export format, or of the upload, is not installed."""
    wanted: Sequence[str] = [*LIBRARIES[export_format], *(LIBRARIES["push"] if push else ())]
    for name in wanted:
        if not is_installed(name):
            raise UsageError(
                f"{'--push' if name in LIBRARIES['push'] else f'--to {export_format}'} needs "
                f"{name}, which is not installed; run {install_command('export')}"
            )


def export(options: argparse.Namespace) -> None:
    """Export the network of a checkpoint in the format `options.to`; print how to load it."""
    form, name = options.to, options.push
    if name is not None and form != "hub":
        raise UsageError(f"--push needs --to hub, not --to {form}; write --to hub")
    check_export_libraries(form, push=name is not None)
    if name is not None:
        from lsgd.export.push import check_push

        check_push(name)
    if options.out:
        _check_new(options.out, form)
    recipe, saved = load_for_export(options.checkpoint, options.words, form)
    out = options.out or Path(f"{recipe.name}-seed{recipe.seed}-step{saved.step}{FORMATS[form]}")
    _check_new(out, form)
    exported = build_exported_network(options.checkpoint, recipe, saved)
    how = write(exported, form, out)
    print(f"{recipe.model.name} of {recipe.name}, {exported.evaluated_as}: {out}\n{how}")
    if name is not None:
        from lsgd.export.push import push

        print(push(out, name))


def write(exported: ExportedNetwork, export_format: str, out: Path) -> str:
    """Write an exported network to a file or folder in this format; return how to load it."""
    # Imported here, since each format needs a library that the others do not.
    match export_format:
        case "torchvision":
            write_form = write_state_dict
        case "safetensors":
            write_form = write_safetensors
        case "onnx":
            from lsgd.export.onnx import write_onnx as write_form
        case "hub":
            from lsgd.export.hub import write_hub

            with create_output_folder(out) as folder:
                assert folder is not None
                return write_hub(exported, folder)
        case _:
            raise ValueError(export_format)
    with writing_to(out, "write --out PATH"), atomic_write(out) as file:
        return write_form(exported, file)


def _check_new(out: Path, export_format: str) -> None:
    """Raise UsageError unless a new file, or with --to hub a folder, can be created at a path."""
    if export_format != "hub":
        check_new_file(out, "--out")
    elif out.exists() or out.is_symlink():
        raise UsageError(f"--out {out} exists already and is not overwritten; write another folder")


def main(argv: Sequence[str]) -> int:
    """Run the command line `python -m lsgd.export` and return its exit code."""
    parser = Parser(
        "lsgd.export",
        __doc__,
        keys=config.override_keys,
        usage="python -m lsgd.export CHECKPOINT --to FORM [--out PATH] [key=value ...]",
    )
    parser.add_argument(
        "checkpoint", type=paths.parse_path, help="a run folder, or its checkpoint.pt"
    )
    parser.add_argument("--to", required=True, choices=FORMATS, help="the form")
    parser.add_path("--out", "PATH", "the file or folder to write")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder of --to hub there")
    parser.add_argument(
        "words", nargs="*", default=[], metavar="key=value", help="such as data.root=/data/imagenet"
    )
    return run_alone(lambda: export(parser.parse_intermixed_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
