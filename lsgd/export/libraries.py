"""The libraries that an export needs and a training run does not."""

from collections.abc import Sequence

from lsgd.errors import UsageError
from lsgd.installation import install_command, is_installed

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
                f"{name}, which is not installed; run"
                f" {install_command('export')}"
            )
