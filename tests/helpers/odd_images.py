"""Unusual and damaged image files for tests, by name."""

import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 61, 47


def photo(mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Return a smooth image with some noise, in which pixels and channels differ."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 4))
    waves = [np.sin(x / (5 + channel) + y / (9 - channel)) for channel in range(4)]
    pixels = np.clip(128 + 90 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)
    if mode in ("RGBA", "CMYK"):
        return Image.frombytes(mode, size, pixels.tobytes())
    image = Image.frombytes("RGB", size, pixels[..., :3].tobytes())
    if mode == "P":
        return image.quantize(50)
    if mode == "LA":
        return Image.merge("LA", image.split()[:2])
    return image.convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return the bytes of an image file in this PIL format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rotated(orientation: int) -> Image.Exif:
    """Return EXIF data with this orientation, as a rotated camera writes it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def without_segment(jpeg: bytes, marker: bytes) -> bytes:
    """Return a JPEG without its first segment of this marker."""
    at = jpeg.index(marker)
    return jpeg[:at] + jpeg[at + 2 + int.from_bytes(jpeg[at + 2 : at + 4]) :]


def adobe(jpeg: bytes, transform: int) -> bytes:
    """Return a JPEG with another colour transform in its Adobe segment and unchanged pixel data."""
    at = jpeg.index(b"Adobe") + 11
    return jpeg[:at] + bytes([transform]) + jpeg[at + 1 :]


def frame(jpeg: bytes, marker: int | None = None, **fields: int) -> bytes:
    """Return a JPEG with another marker, precision, height or width in its frame header."""
    changed = bytearray(jpeg)
    at = jpeg.index(b"\xff\xc0")
    changed[at + 1] = marker or changed[at + 1]
    changed[at + 4] = fields.get("precision", 8)
    changed[at + 5 : at + 9] = struct.pack(
        ">HH", fields.get("height", HEIGHT), fields.get("width", WIDTH)
    )
    return bytes(changed)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a PNG chunk of this type and content, with its length and checksum."""
    checksum = zlib.crc32(kind + content).to_bytes(4)
    return len(content).to_bytes(4) + kind + content + checksum


def png_of(stream: bytes, *chunks: bytes, **header: int) -> bytes:
    """Return a PNG file with this compressed stream, after these other chunks."""
    fields = {"width": WIDTH, "height": HEIGHT, "bits": 8, "colour": 2} | header
    packed = struct.pack(
        ">IIBBBBB",
        *(fields[name] for name in ("width", "height", "bits", "colour")),
        *(0, 0, fields.get("interlaced", 0)),
    )
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", packed)
    return start + b"".join(chunks) + chunk(b"IDAT", stream) + chunk(b"IEND", b"")


def unfiltered(rows: Iterable[NDArray[np.uint8]]) -> bytes:
    """Return the compressed PNG stream of unfiltered rows of bytes."""
    return zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))


def png(rows: NDArray[np.uint8], bits: int, colour: int, *chunks: bytes) -> bytes:
    """Return a PNG file of rows (height, bytes) with this sample depth and colour type."""
    width = rows.shape[1] * 8 // bits // {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    header = {"width": width, "height": len(rows), "bits": bits, "colour": colour}
    return png_of(unfiltered(rows), *chunks, **header)


def deep(channels: int) -> NDArray[np.uint8]:
    """Return rows of 16-bit big-endian samples for a PNG of this many channels."""
    image = np.array(photo("RGBA"))[:, :, :channels].astype(np.int64) * 257
    moved = (image - np.arange(WIDTH)[:, None] % 200).clip(0)
    return moved.astype(">u2").reshape(HEIGHT, -1).view(np.uint8)


def bmp(rows: NDArray[np.uint8], bits: int, compression: int) -> bytes:
    """Return a BMP file of rows of bytes, bottom row first, with a gray palette up to 8 bits."""
    palette = b"".join(bytes([level] * 3 + [0]) for level in range(256))
    palette = palette if bits <= 8 else b""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4 if compression == 0 else 0)))
    width = WIDTH if compression else rows.shape[1] * 8 // bits
    header = struct.pack(
        "<IiiHHIIiiII", 40, width, HEIGHT, 1, bits, compression, padded.size, 0, 0, 0, 0
    )
    begin = 54 + len(palette)
    start = b"BM" + struct.pack("<IHHI", begin + padded.size, 0, 0, begin)
    return start + header + palette + padded.tobytes()


def interlaced() -> bytes:
    """Return a PNG file interlaced by the seven passes of Adam7."""
    image, rows = np.array(photo()), list[NDArray[np.uint8]]()
    for place in ("0088", "0488", "4084", "0244", "2042", "0122", "1021"):
        top, left, down, right = map(int, place)
        rows += list(image[top::down, left::right])
    return png_of(unfiltered(rows), interlaced=1)


def jpegs() -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of JPEG files of all variants, valid and damaged."""
    plain = encoded(photo(), "JPEG", quality=90)
    cmyk = encoded(photo("CMYK"), "JPEG", quality=90)
    yield "plain", plain
    for orientation in range(9):
        yield f"exif {orientation}", encoded(photo(), "JPEG", exif=rotated(orientation))
    yield "gray", encoded(photo("L"), "JPEG")
    yield "progressive", encoded(photo(), "JPEG", progressive=True)
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        name = f"chroma {subsampling.replace(':', '')}"
        yield name, encoded(photo(), "JPEG", subsampling=subsampling)
    yield "restart markers", encoded(photo(), "JPEG", restart_marker_blocks=3)
    yield "rgb kept", encoded(photo(), "JPEG", keep_rgb=True)
    yield "without JFIF", without_segment(plain, b"\xff\xe0")
    yield "comment", encoded(photo(), "JPEG", comment=b"\xff\xd9 " * 9999)
    yield "cmyk", cmyk
    yield "cmyk without Adobe", without_segment(cmyk, b"\xff\xee")
    yield "ycck", adobe(cmyk, 2)
    sizes = ((1, 1), (1, 300), (300, 1), (2, 3), (7, 9), (8, 8), (17, 2), (50000, 4), (3, 60000))
    for size in sizes:
        yield f"size {size[0]} {size[1]}", encoded(photo(size=size), "JPEG")
    yield "trailing bytes", plain + b"trailing" * 40
    yield "trailing jpeg", plain + plain
    yield "leading bytes", b"\n" + plain
    yield "frame arithmetic", frame(plain, 0xC9)
    yield "frame extended", frame(plain, 0xC1)
    yield "frame lossless", frame(plain, 0xC3)
    yield "frame of 12 bits", frame(plain, 0xC1, precision=12)
    yield "frame 65500", frame(plain, height=65500, width=65500)
    yield "frame of height 0", frame(plain, height=0)
    yield "frame higher", frame(plain, height=HEIGHT + 8)
    yield "cut by 1", plain[:-1]
    yield "cut by 2", plain[:-2]
    yield "cut by 200", plain[:-200]
    yield "cut in its header", plain[:200]
    yield "only a start", plain[:2]
    yield "without tables", without_segment(plain, b"\xff\xdb")
    yield (
        "two pictures",
        encoded(photo(), "MPO", save_all=True, append_images=[photo(size=(30, 30))]),
    )
    scan = plain.index(b"\xff\xda") + 300
    yield "zeros within", plain[:scan] + bytes(60) + plain[scan + 60 :]
    yield "marker within", plain[:scan] + b"\xff\xd5" + plain[scan + 2 :]
    yield "ünïcödé 图", plain
    yield "a 'name' of \"quotes\"", plain
    yield "two\nlines", plain


def pngs() -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of PNG files of all variants, valid, truncated and damaged."""
    plain = encoded(photo(), "PNG")
    yield "plain", plain
    for mode in ("1", "L", "LA", "P", "RGBA"):
        yield f"mode {mode}", encoded(photo(mode), "PNG")
    for bits in (1, 2, 4):
        yield f"palette of {bits} bits", encoded(photo().quantize(2**bits), "PNG", bits=bits)
        yield f"gray of {bits} bits", png(np.array(photo("L")), bits, 0)
    yield "palette transparent", encoded(photo("P"), "PNG", transparency=3)
    yield "palette half transparent", encoded(photo("P"), "PNG", transparency=bytes([0, 128] * 25))
    yield "rgb transparent", encoded(photo(), "PNG", transparency=photo().getpixel((3, 3)))
    yield "gray transparent", encoded(photo("L"), "PNG", transparency=128)
    for colour, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        yield f"16 bits x {channels}", png(deep(channels), 16, colour)
    yield "interlaced", interlaced()
    yield (
        "gamma",
        png(np.array(photo()).reshape(HEIGHT, -1), 8, 2, chunk(b"gAMA", struct.pack(">I", 100000))),
    )
    yield "exif 6", encoded(photo(), "PNG", exif=rotated(6))
    yield "animated", encoded(photo(), "PNG", save_all=True, append_images=[photo().rotate(90)])
    yield "size 1 1", encoded(photo(size=(1, 1)), "PNG")
    yield "trailing bytes", plain + b"trailing" * 40
    yield "cut by 1", plain[:-1]
    yield "cut by 8", plain[:-8]
    yield "cut in half", plain[: len(plain) // 2]
    yield "cut in its header", plain[:20]
    damaged = bytearray(plain)
    damaged[len(plain) // 2] ^= 255
    yield "bits flipped", bytes(damaged)
    sum_at = len(plain) - 16
    yield "sum wrong", plain[:sum_at] + bytes(4) + plain[sum_at + 4 :]
    yield "text with a wrong sum", plain[:33] + chunk(b"tEXt", b"a\0b")[:-4] + bytes(4) + plain[33:]
    stream = unfiltered(np.array(photo()))
    yield "huge", png_of(stream, width=60000, height=60000)
    yield "rows missing", png_of(stream, height=HEIGHT + 5)
    yield "rows too many", png_of(stream, height=HEIGHT - 5)
    yield "stream cut", png_of(stream[:-4])
    yield "stream with a wrong sum", png_of(stream[:-4] + bytes(4))
    yield "without palette", png_of(unfiltered(np.array(photo("P"))), colour=3)
    yield "unknown chunk", png_of(stream, chunk(b"quQu", b"may be skipped"))
    yield "unknown chunk that counts", png_of(stream, chunk(b"QuQu", b"may not be"))


def others() -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of files in other image formats, and of files that are no image."""
    yield "gif", encoded(photo("P"), "GIF")
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"bmp {mode}", encoded(photo(mode), "BMP")
    plain = encoded(photo(), "BMP")
    yield "bmp cut by 1", plain[:-1]
    yield "bmp of 16 bits", bmp(deep(1), 16, 0)
    coded = [b"\1" + bytes([level]) for level in np.array(photo("L"))[0]]
    rows = [np.frombuffer(b"".join(coded) + b"\0\0", np.uint8)] * HEIGHT
    yield "bmp in runs", bmp(np.array(rows), 8, 1)
    upside = bytearray(plain)
    upside[22:26] = struct.pack("<i", -HEIGHT)
    yield "bmp top down", bytes(upside)
    for mode in ("RGB", "RGBA"):
        yield f"webp {mode}", encoded(photo(mode), "WEBP", lossless=mode == "RGBA")
    yield "webp exif 6", encoded(photo(), "WEBP", exif=rotated(6))
    yield "webp cut", encoded(photo(), "WEBP")[:-100]
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"):
        yield f"tiff {mode.replace(';', ' ')}", encoded(photo(mode), "TIFF")
    for coding in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        yield f"tiff by {coding}", encoded(photo(), "TIFF", compression=coding)
    yield "tiff by group4", encoded(photo("1"), "TIFF", compression="group4")
    yield "tiff white is zero", encoded(photo("L"), "TIFF", tiffinfo={262: 0})
    yield "tiff YCbCr by lzw", encoded(photo("YCbCr"), "TIFF", compression="tiff_lzw")
    yield "tiff exif 6", encoded(photo(), "TIFF", exif=rotated(6))
    yield "tiff of pages", encoded(photo(), "TIFF", save_all=True, append_images=[photo("L")])
    yield "tiff cut", encoded(photo(), "TIFF")[:-100]
    yield "ppm", encoded(photo(), "PPM")
    yield "pgm", encoded(photo("L"), "PPM")
    yield "ppm as text", b"P3 2 2 255\n" + b"1 2 3 4 5 6 7 8 9 10 11 12\n"
    yield "ppm of 16 bits", b"P6 2 2 65535\n" + bytes(range(24))
    yield "ppm of level 100", b"P6 2 2 100\n" + bytes(range(12))
    yield "ppm cut", encoded(photo(), "PPM")[:-100]
    yield "jpeg 2000", encoded(photo(), "JPEG2000")
    yield "avif", encoded(photo(), "AVIF")
    yield "empty", b""
    yield "zeros", bytes(5000)
    yield "text", b"<html>404</html>" * 20
    yield "noise", np.random.default_rng(1).bytes(5000)


@cache
def odd_images() -> dict[str, bytes]:
    """Return the bytes of all odd files by name, without a suffix; `file_name` adds it."""
    return {
        f"{kind} {name}".strip(): content
        for kind, made in (("jpeg", jpegs()), ("png", pngs()), ("", others()))
        for name, content in made
    }


def file_name(name: str) -> str:
    """Return the file name in a class folder: with ImageNet's suffix .JPEG, whatever the format."""
    return f"{name}.JPEG"


REFUSED = {
    "empty": ["empty"],
    "not an image": ["jpeg leading bytes", "zeros", "text", "noise"],
    "truncated": [
        *("jpeg cut by 1", "jpeg cut by 2", "jpeg cut by 200", "jpeg cut in its header"),
        # PIL supports no JPEG of 12 bits or of height 0, and reports its header as truncated.
        *("jpeg only a start", "jpeg frame of 12 bits", "jpeg frame of height 0"),
        *("png cut by 1", "png cut by 8", "png cut in half", "png cut in its header"),
        *("png rows missing", "png stream cut", "png text with a wrong sum"),
        *("bmp cut by 1", "tiff cut", "ppm cut"),
    ],
    "broken": [
        *("jpeg frame lossless", "jpeg without tables"),
        *("png bits flipped", "png sum wrong", "png stream with a wrong sum"),
        *("png without palette", "png unknown chunk that counts", "webp cut"),
    ],
    "too large": ["jpeg frame 65500", "png huge"],
    "unshared": [
        *("jpeg cmyk without Adobe", "gif", "bmp of 16 bits", "jpeg 2000", "avif"),
        *(f"png 16 bits x {channels}" for channels in (2, 3, 4)),
        *("tiff 1", "tiff by group4", "tiff LA", "tiff LAB", "tiff I", "tiff F"),
        *("tiff exif 6", "ppm of level 100", "ppm of 16 bits"),
    ],
}
"""The names of the files that no loader should read, by the problem that `--check` reports."""

HEADER_ONLY = ["jpeg frame lossless", "jpeg without tables"]
"""The names of refused files with a valid header and end, which an index counts as whole."""

ONE_LEVEL = ["jpeg cmyk", "jpeg ycck", "tiff CMYK", "tiff YCbCr", "tiff P"]
"""The names of files whose pixels differ by one level between the loaders, before resizing."""
