"""One image from its file, as PIL decodes it, and the error where that fails."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from lsgd.errors import InputFailed
from lsgd.inputs.index import Index, prepare_command
from lsgd.rules.sampler import Pass


def load_image(index: Index, example: int) -> Image.Image:
    """The image in RGB as it is stored: a rotation noted in its EXIF data is not applied.

    Raises InputFailed if it cannot be decoded or is of another size than the index says.
    """
    width, height = index.sizes(np.array([example]))[0].tolist()
    content = index.read(example)
    try:
        image = Image.open(io.BytesIO(content)).convert("RGB")
    except UnidentifiedImageError:
        raise index.failed(example, "it is no image" if content else "it is empty") from None
    except Exception as error:
        # A decoder may raise any error on bytes that are not what they seem.
        raise index.failed(example, str(error) or type(error).__name__) from None
    if image.size != (width, height):
        raise index.failed(
            example,
            f"it has {image.width} x {image.height} pixels, and had {width} x {height} when it was "
            "indexed",
        )
    return image


def needed(error: InputFailed, each: Pass, index: Index) -> InputFailed:
    """The failure with the moment at which the image was needed and what to do about it."""
    when = "in an evaluation"
    if each.epoch is not None:
        when = f"in step {each.step + 1} of epoch {each.epoch + 1}"
    command = prepare_command("imagenet", index.root, index.file.parent)
    if index.in_shards():
        return InputFailed(
            f"{error}, needed {when}; write the shards again (`{command}`) and resume: the same "
            "words and run_dir"
        )
    return InputFailed(
        f"{error}, needed {when}; put it right and resume (the same words and run_dir), or leave "
        f"such images out: `{command} --check` writes a skip list for data.skip_list=FILE, which "
        "makes it another run"
    )
