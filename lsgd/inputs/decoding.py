"""The decoding, cropping and resizing of one image file with PIL.

It also finds the formats that PIL and DALI decode differently.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lsgd.errors import InputFailedError
from lsgd.inputs.index import MAX_FILE_BYTES, ImageIndex, original_folders, renewal_command
from lsgd.recipe.image_folder import check_dataset
from lsgd.rules import augmentation
from lsgd.rules.rectangles import rectangle
from lsgd.rules.sampler import MicroBatch
from lsgd.untrusted_files import MAX_PIXELS, read_bounded

GREY_16 = ("I;16", "I;16B", "I;16N")
"""PIL's names of the layouts of grey pixels with 16 bits in either byte order."""

RAW_MODES: dict[str | None, tuple[str, ...]] = {
    "JPEG": ("L", "RGB", "CMYK;I"),
    "MPO": ("L", "RGB"),
    "PNG": ("1", "L;2", "L;4", "L", "LA", "I;16B", "P;1", "P;2", "P;4", "P", "RGB", "RGBA"),
    "BMP": ("1", "L", "P;1", "P;4", "P", "BGR", "BGRX", "BGRA"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("L", "L;I", *GREY_16, "P", "RGB", "RGBX", "RGBA", "CMYK", "YCbCr"),
    "PPM": ("1;I", "L", "RGB"),
}
"""The formats that PIL and DALI both read, with the pixel layouts that both decode to the same RGB.

Layouts have PIL's names. The results differ by one level at most. Of images with 16 bits per
channel only grey ones are included, since PIL drops half of the bits of others.
"""

MAX_RESIZED_PIXELS = 2**24
"""The largest resized image, in pixels, of which only the centre is cropped.

It takes 64 MiB, and has an aspect ratio of 256 at 224 pixels.
"""

PHOTOMETRIC = 0x0106
"""The TIFF tag of the meaning of pixel values; 0 is white for 0."""

ORIENTATION = 0x0112
"""The EXIF tag of the camera's orientation; 1 is upright."""


def decoding_mismatch(image: ImageFile) -> str | None:
    """Return why PIL and DALI decode an opened image file differently, or None if they agree.

    It only reads the header, which is cheap; the image may still be broken.
    """
    kind = image.format
    if kind not in RAW_MODES:
        return f"{kind} is not a format that every loader reads"
    # WEBP's layout is its mode, which is unknown before the image is decoded.
    layout = image.tile[0][3] if image.tile else image.mode
    raw_mode, *rest = (layout,) if isinstance(layout, str) else layout or ("unknown",)
    if raw_mode not in RAW_MODES[kind]:
        return f"{kind} with pixels of {raw_mode} is not decoded the same way by every loader"
    if kind == "JPEG" and raw_mode == "CMYK;I" and "adobe" not in image.info:
        return "CMYK without Adobe's marker is decoded as a negative by PIL and not by DALI"
    if kind == "PPM" and rest and rest[0] != 255:
        return f"PPM with levels up to {rest[0]} is scaled to 255 by PIL and not by DALI"
    if kind == "TIFF" and raw_mode in GREY_16 and image.getexif().get(PHOTOMETRIC) == 0:
        return "TIFF of 16 bits with white as 0 is inverted by DALI and not by PIL"
    if kind == "TIFF" and image.getexif().get(ORIENTATION, 1) != 1:
        return "TIFF with an orientation tag is rotated by PIL and not by DALI"
    return None


@contextmanager
def unlimited_image_size() -> Iterator[None]:
    """Disable PIL's limit on image sizes within this context.

    The limit is another one than the index's, and would warn in each epoch. The index limits the
    images that it lists, and images of a size other than the indexed one are not decoded. The limit
    belongs to the process, which may be another program's, so it is restored.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def reuse_pixel_blocks() -> None:
    """Make PIL allocate pixels in blocks of 128 KiB and reuse up to 32 MiB of free blocks.

    By default PIL allocates each image in one piece. Photographs have many sizes, so freed gaps fit
    no other image, and a decoder's memory grows by half over some epochs. Blocks of one size avoid
    this.
    """
    allocator = Image.core  # type: ignore[attr-defined]  # not in Pillow's types
    allocator.set_block_size(2**17)
    allocator.set_blocks_max(2**8)


@unlimited_image_size()
def load_image(index: ImageIndex, example: int, *, channels: int = 3) -> Image.Image:
    """Read and decode an indexed image in its stored orientation, ignoring EXIF rotation.

    It is converted to RGB, or for one channel to grey, as by convert_pixels.

    Raises InputFailedError if it cannot be decoded, or if its size differs from the index,
    before any of it is decoded.
    """
    width, height = index.sizes(np.array([example]))[0].tolist()
    content = index.read(example)
    try:
        image: Image.Image = Image.open(io.BytesIO(content))
        if image.size == (width, height):
            image.load()
            image = convert_pixels(image, channels)
    except UnidentifiedImageError:
        raise index.read_error(
            example, "it is not an image" if content else "it is empty"
        ) from None
    except Exception as error:
        # A decoder may raise any error on bytes that are not in the expected format.
        raise index.read_error(example, str(error) or type(error).__name__) from None
    if image.size != (width, height):
        raise index.read_error(
            example,
            f"it has {image.width} x {image.height} pixels, and had {width} x {height} when it was "
            "indexed",
        )
    return image


def load_loose_image(path: Path, *, channels: int = 3) -> Image.Image:
    """Read and decode an image that is in no index, as load_image decodes indexed ones.

    Raises InputFailedError if it cannot be decoded, if the loaders would decode it differently, or,
    before it is decoded, if it has more than MAX_PIXELS. Call it within unlimited_image_size, whose
    limit belongs to all threads of the process.
    """
    try:
        image: Image.Image
        with Image.open(io.BytesIO(read_bounded(path, MAX_FILE_BYTES))) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height} pixels"
                raise ValueError(f"it has {size}, more than {MAX_PIXELS}")
            if mismatch := decoding_mismatch(image):
                raise ValueError(mismatch)
            image.load()
            return convert_pixels(image, channels)
    except UnidentifiedImageError:
        raise InputFailedError(f"{path} cannot be read (it is not an image)") from None
    except Exception as error:
        # A decoder may raise any error on bytes that are not in the expected format.
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputFailedError(f"{path} cannot be read ({why})") from None


def convert_pixels(image: Image.Image, channels: int) -> Image.Image:
    """Convert a decoded image to RGB of 8 bits, or for one channel to grey as float32 of 0 to 255.

    Grey pixels of 16 bits are scaled by their range: 65535 becomes 255, unrounded for one channel.
    Colours become grey by the weights of ITU-R 601, unrounded.
    """
    if image.mode.startswith("I;16") or image.mode == "I":
        levels = np.asarray(image)
        if channels == 1:
            return Image.fromarray(levels.astype(np.float32) / np.float32(257))
        image = Image.fromarray(((levels.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif channels == 1 and image.mode == "L":
        return image.convert("F")
    if isinstance(image.info.get("transparency"), bytes):
        # The colours of a palette are those without it, and PIL would warn in each process.
        del image.info["transparency"]
    # convert would copy an image that is RGB already.
    colours = image if image.mode == "RGB" else image.convert("RGB")
    return colours if channels == 3 else colours.convert("F")


def crop(
    image: Image.Image, window: NDArray[np.int64], side: int, *, bicubic: bool = False
) -> Image.Image:
    """Crop the window (left, top, width, height) of an image and resize it to `side` x `side`.

    Its pixels equal those of torchvision.transforms.functional.resized_crop.
    """
    left, top, width, height = window.tolist()
    cropped = image.crop((left, top, left + width, top + height))
    return cropped.resize((side, side), _kernel(bicubic))


def centre_crop(
    image: Image.Image,
    side: int,
    *,
    crop_ratio: float = augmentation.CROP_RATIO,
    aspect: float = 0.0,
    bicubic: bool = False,
) -> Image.Image:
    """Resize an image's short side to `side` / `crop_ratio` and crop the centred square of `side`.

    With `aspect` it is the rectangle of this aspect ratio with `side` as its shorter one; pixels
    outside of the image are black, placed as in torchvision 0.2, by up to a pixel from today's. All
    other pixels equal those of torchvision's resize and center_crop. The exception is an image so
    long that the resized one would have more than MAX_RESIZED_PIXELS: only the region of the crop
    is resized, and rounding changes its bilinear pixels by up to two levels.
    """
    short = round(side / crop_ratio)
    across, down = rectangle(side, aspect)
    width, height = (short * length // min(image.size) for length in image.size)
    left, top = round((width - across) / 2), round((height - down) / 2)
    if width * height > MAX_RESIZED_PIXELS and min(left, top) >= 0:
        size = np.array([image.size])
        (region,) = augmentation.evaluation_regions(size, side, crop_ratio, aspect)
        end = np.minimum(region[:2] + region[2:], image.size)
        return image.resize((across, down), _kernel(bicubic), box=(*region[:2], *end))
    resized = image.resize((width, height), _kernel(bicubic))
    return resized.crop((left, top, left + across, top + down))


def flip_horizontally(image: Image.Image) -> Image.Image:
    """Return the image flipped horizontally."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _kernel(bicubic: bool) -> Image.Resampling:
    return Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR


def describe_step(each: MicroBatch) -> str:
    """Name the training step or the evaluation of a micro-batch, as text for an error message."""
    if each.epoch is None:
        return "in an evaluation"
    return f"in step {each.step + 1} of epoch {each.epoch + 1}"


def explain_read_error(
    error: InputFailedError, each: MicroBatch, index: ImageIndex, dataset: str
) -> InputFailedError:
    """Return the error of an unreadable image, extended by the step that needed it and a fix."""
    when = describe_step(each)
    dataset = check_dataset(dataset)
    command = renewal_command(dataset, index.root, index.file.parent, each.split)
    root, _ = original_folders(index.root, index.file.parent)
    if index.in_shards() and not (root / "shards.json").exists():
        fix = (
            "copy the shard again and rerun the same command with its run_dir to resume, or index "
            f"the shards without such images (`{command}`), which makes it another run"
        )
    elif index.in_shards():
        fix = (
            f"remove this shard and write it again (`{command}`), then rerun the same command with "
            "its run_dir to resume"
        )
    else:
        fix = (
            "repair it and rerun the same command with its run_dir to resume, or skip such images: "
            f"`{command} --check` writes a skip list for data.skip_list=FILE, which makes it "
            "another run"
        )
    if root != index.root:
        fix = (
            f"remove this file of data.stage and rerun the same command with its run_dir, which "
            f"copies it again from {root}; if it is damaged there, {fix}"
        )
    return InputFailedError(f"{error}, needed {when}; {fix}")
