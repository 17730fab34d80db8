"""One image from its file, as PIL decodes and resizes it, and what of it other loaders read
otherwise."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lsgd.errors import InputFailed
from lsgd.inputs.index import Index, prepare_command
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass

RAW_MODES: dict[str | None, tuple[str, ...]] = {
    "JPEG": ("L", "RGB", "CMYK;I"),
    "MPO": ("L", "RGB"),
    "PNG": ("1", "L;2", "L;4", "L", "LA", "P;1", "P;2", "P;4", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P;1", "P;4", "P", "BGR", "BGRX", "BGRA"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("L", "L;I", "P", "RGB", "RGBX", "RGBA", "CMYK", "YCbCr"),
    "PPM": ("1;I", "L", "RGB"),
}
"""The formats that PIL and DALI both read, and the layouts of pixels, by PIL's names, that become
the same RGB with both, or differ by one level. Not among them: 16 bits per channel."""

ORIENTATION = 0x0112
"""The tag of a camera's note on how it was held; 1 is upright."""


def unshared(image: ImageFile) -> str | None:
    """What keeps PIL and DALI from reading an opened image alike; None for most images.

    Only the header is looked at, which costs next to nothing; the image may still be broken.
    """
    kind = image.format
    if kind not in RAW_MODES:
        return f"{kind} is none of the formats that every loader reads"
    # WEBP's layout is its mode, and not known before it is decoded.
    layout = image.tile[0][3] if image.tile else image.mode
    raw_mode, *rest = (layout,) if isinstance(layout, str) else layout or ("unknown",)
    if raw_mode not in RAW_MODES[kind]:
        return f"{kind} with pixels of {raw_mode} is not read alike by every loader"
    if kind == "JPEG" and raw_mode == "CMYK;I" and "adobe" not in image.info:
        return "CMYK without Adobe's marker is a negative to PIL and not to DALI"
    if kind == "PPM" and rest and rest[0] != 255:
        return f"PPM with levels up to {rest[0]} is scaled to 255 by PIL and not by DALI"
    if kind == "TIFF" and image.getexif().get(ORIENTATION, 1) != 1:
        return "TIFF with a note to rotate it is rotated by PIL and not by DALI"
    return None


def keep_blocks() -> None:
    """Make PIL store the pixels of this process's images in blocks of 128 KiB, and keep 32 MiB.

    It takes an image's memory from malloc in one piece, and photographs are of all sizes: the gaps
    that they leave fit no other, and a decoder grows by half over some epochs. Blocks fit always.
    """
    allocator = Image.core  # type: ignore[attr-defined]  # not in Pillow's types
    allocator.set_block_size(2**17)
    allocator.set_blocks_max(2**8)


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


def crop(
    image: Image.Image, window: NDArray[np.int64], side: int, *, bicubic: bool = False
) -> Image.Image:
    """The window (left, top, width, height) of an image, resized to `side` x `side`.

    Pixel for pixel what torchvision.transforms.functional.resized_crop makes of it.
    """
    left, top, width, height = window.tolist()
    cropped = image.crop((left, top, left + width, top + height))
    return cropped.resize((side, side), _kernel(bicubic))


def centre_crop(image: Image.Image, side: int, *, bicubic: bool = False) -> Image.Image:
    """Short side resized to 256/224 of `side`, then the centred square of `side` pixels.

    Pixel for pixel what torchvision's resize and center_crop make of it.
    """
    short = round(side * augmentation.RESIZE)
    width, height = (short * length // min(image.size) for length in image.size)
    resized = image.resize((width, height), _kernel(bicubic))
    left, top = round((width - side) / 2), round((height - side) / 2)
    return resized.crop((left, top, left + side, top + side))


def mirrored(image: Image.Image) -> Image.Image:
    """The image with left and right exchanged."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _kernel(bicubic: bool) -> Image.Resampling:
    return Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR


def moment(each: Pass) -> str:
    """When the images of a pass are needed, in words."""
    if each.epoch is None:
        return "in an evaluation"
    return f"in step {each.step + 1} of epoch {each.epoch + 1}"


def needed(error: InputFailed, each: Pass, index: Index) -> InputFailed:
    """The failure with the moment at which the image was needed and what to do about it."""
    when = moment(each)
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
