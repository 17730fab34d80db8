"""The libraries that an export needs and a run does not."""

from collections.abc import Sequence
from importlib.util import find_spec

from lsgd.errors import Refused
from lsgd.installation import install

LIBRARIES = {
    "torchvision": (),
    "safetensors": ("safetensors",),
    "onnx": ("onnx", "onnxscript"),
    "hub": ("safetensors",),
    "push": ("huggingface_hub",),
}
"""Those that each form imports, and what uploads it."""


def check_export_libraries(form: str, *, push: bool) -> None:
    """Raise Refused where a library of this form, or of its upload, is missing."""
    wanted: Sequence[str] = [*LIBRARIES[form], *(LIBRARIES["push"] if push else ())]
    for name in wanted:
        if find_spec(name) is None:
            raise Refused(
                f"{'--push' if name in LIBRARIES['push'] else f'--to {form}'} needs {name}, which "
                f"is not installed; type {install('export')}"
            )
