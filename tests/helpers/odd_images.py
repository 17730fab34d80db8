"""Image files as no camera makes them, by the names that they would have in a class folder."""

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
    """A soft picture with some noise, in which every pixel and channel is another."""
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


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of the image in a file of this kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rotated(orientation: int) -> Image.Exif:
    """What a camera notes that was not held upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def without(jpeg: bytes, marker: bytes) -> bytes:
    """A JPEG without its first segment of this marker."""
    at = jpeg.index(marker)
    return jpeg[:at] + jpeg[at + 2 + int.from_bytes(jpeg[at + 2 : at + 4]) :]


def adobe(jpeg: bytes, transform: int) -> bytes:
    """A JPEG whose Adobe segment says another transform of colours; the pixels stay as coded."""
    at = jpeg.index(b"Adobe") + 11
    return jpeg[:at] + bytes([transform]) + jpeg[at + 1 :]


def frame(jpeg: bytes, marker: int | None = None, **fields: int) -> bytes:
    """A JPEG whose frame header has another marker, precision, height or width."""
    changed = bytearray(jpeg)
    at = jpeg.index(b"\xff\xc0")
    changed[at + 1] = marker or changed[at + 1]
    changed[at + 4] = fields.get("precision", 8)
    changed[at + 5 : at + 9] = struct.pack(
        ">HH", fields.get("height", HEIGHT), fields.get("width", WIDTH)
    )
    return bytes(changed)


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    checksum = zlib.crc32(kind + content).to_bytes(4)
    return len(content).to_bytes(4) + kind + content + checksum


def png_of(stream: bytes, *chunks: bytes, **header: int) -> bytes:
    """A PNG with this compressed stream, and other chunks before it."""
    fields = {"width": WIDTH, "height": HEIGHT, "bits": 8, "colour": 2} | header
    packed = struct.pack(
        ">IIBBBBB",
        *(fields[name] for name in ("width", "height", "bits", "colour")),
        *(0, 0, fields.get("interlaced", 0)),
    )
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", packed)
    return start + b"".join(chunks) + chunk(b"IDAT", stream) + chunk(b"IEND", b"")


def unfiltered(rows: Iterable[NDArray[np.uint8]]) -> bytes:
    """The stream of a PNG, compressed, of rows of bytes."""
    return zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))


def png(rows: NDArray[np.uint8], bits: int, colour: int, *chunks: bytes) -> bytes:
    """A PNG of rows of bytes, (height, bytes), whose samples have this many bits."""
    width = rows.shape[1] * 8 // bits // {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    header = {"width": width, "height": len(rows), "bits": bits, "colour": colour}
    return png_of(unfiltered(rows), *chunks, **header)


def deep(channels: int) -> NDArray[np.uint8]:
    """Rows of samples of 16 bits, high byte first, for a PNG of this many channels."""
    image = np.array(photo("RGBA"))[:, :, :channels].astype(np.int64) * 257
    moved = (image - np.arange(WIDTH)[:, None] % 200).clip(0)
    return moved.astype(">u2").reshape(HEIGHT, -1).view(np.uint8)


def bmp(rows: NDArray[np.uint8], bits: int, compression: int) -> bytes:
    """A BMP of rows of bytes, the lowest first, in gray if it has a palette."""
    palette = b"".join(bytes([level] * 3 + [0]) for level in range(0, 256, 17 if bits == 4 else 1))
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
    """A PNG in the seven passes of Adam7."""
    image, rows = np.array(photo()), list[NDArray[np.uint8]]()
    for place in ("0088", "0488", "4084", "0244", "2042", "0122", "1021"):
        top, left, down, right = map(int, place)
        rows += list(image[top::down, left::right])
    return png_of(unfiltered(rows), interlaced=1)


def jpegs() -> Iterator[tuple[str, bytes]]:
    """Every way to write a JPEG that PIL, or a changed byte, allows."""
    plain = saved(photo(), "JPEG", quality=90)
    cmyk = saved(photo("CMYK"), "JPEG", quality=90)
    yield "plain", plain
    for orientation in range(9):
        yield f"exif {orientation}", saved(photo(), "JPEG", exif=rotated(orientation))
    yield "exif 6 in a progressive one", saved(photo(), "JPEG", exif=rotated(6), progressive=True)
    yield "gray", saved(photo("L"), "JPEG")
    yield "progressive", saved(photo(), "JPEG", progressive=True)
    yield "progressive gray", saved(photo("L"), "JPEG", progressive=True)
    yield "optimised", saved(photo(), "JPEG", optimize=True)
    yield "quality 1", saved(photo(), "JPEG", quality=1)
    yield "quality 100", saved(photo(), "JPEG", quality=100)
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        name = f"chroma {subsampling.replace(':', '')}"
        yield name, saved(photo(), "JPEG", subsampling=subsampling)
    yield "restart markers", saved(photo(), "JPEG", restart_marker_blocks=3)
    yield (
        "restart rows progressive",
        saved(photo(), "JPEG", restart_marker_rows=1, progressive=True),
    )
    yield "rgb kept", saved(photo(), "JPEG", keep_rgb=True)
    yield "without JFIF", without(plain, b"\xff\xe0")
    yield "comment", saved(photo(), "JPEG", comment=b"\xff\xd9 " * 9999)
    yield "profile", saved(photo(), "JPEG", icc_profile=b"no profile" * 20)
    yield "cmyk", cmyk
    yield "cmyk without Adobe", without(cmyk, b"\xff\xee")
    yield "ycck", adobe(cmyk, 2)
    yield "cmyk progressive", saved(photo("CMYK"), "JPEG", progressive=True)
    for size in ((1, 1), (1, 300), (300, 1), (2, 3), (7, 9), (8, 8), (17, 2)):
        yield f"size {size[0]} {size[1]}", saved(photo(size=size), "JPEG")
    yield "size 1 1 gray", saved(photo("L", (1, 1)), "JPEG")
    yield "trailing bytes", plain + b"trailing" * 40
    yield "trailing zeros", plain + bytes(1000)
    yield "trailing jpeg", plain + plain
    yield "trailing end", plain + b"more\xff\xd9"
    yield "leading bytes", b"\n" + plain
    yield "frame arithmetic", frame(plain, 0xC9)
    yield "frame extended", frame(plain, 0xC1)
    yield "frame lossless", frame(plain, 0xC3)
    yield "frame of 12 bits", frame(plain, 0xC1, precision=12)
    yield "frame 65500", frame(plain, height=65500, width=65500)
    yield "frame of height 0", frame(plain, height=0)
    yield "frame higher", frame(plain, height=HEIGHT + 8)
    yield "frame lower", frame(plain, height=HEIGHT - 9)
    yield "cut by 1", plain[:-1]
    yield "cut by 2", plain[:-2]
    yield "cut by 200", plain[:-200]
    yield "cut in its header", plain[:200]
    yield "only a start", plain[:2]
    yield "only start and end", b"\xff\xd8\xff\xd9"
    yield "without tables", without(plain, b"\xff\xdb")
    yield "two pictures", saved(photo(), "MPO", save_all=True, append_images=[photo(size=(30, 30))])
    scan = plain.index(b"\xff\xda") + 300
    yield "zeros within", plain[:scan] + bytes(60) + plain[scan + 60 :]
    yield "marker within", plain[:scan] + b"\xff\xd5" + plain[scan + 2 :]
    yield "ünïcödé 图", plain
    yield "a 'name' of \"quotes\"", plain
    yield "two\nlines", plain


def pngs() -> Iterator[tuple[str, bytes]]:
    """Every kind of PNG, whole, cut and torn."""
    plain = saved(photo(), "PNG")
    yield "plain", plain
    for mode in ("1", "L", "LA", "P", "RGBA"):
        yield f"mode {mode}", saved(photo(mode), "PNG")
    for bits in (1, 2, 4):
        yield f"palette of {bits} bits", saved(photo().quantize(2**bits), "PNG", bits=bits)
        yield f"gray of {bits} bits", png(np.array(photo("L")), bits, 0)
    yield "palette transparent", saved(photo("P"), "PNG", transparency=3)
    yield "palette half transparent", saved(photo("P"), "PNG", transparency=bytes(range(50)))
    yield "rgb transparent", saved(photo(), "PNG", transparency=photo().getpixel((3, 3)))
    yield "gray transparent", saved(photo("L"), "PNG", transparency=128)
    yield "rgba all clear", saved(Image.new("RGBA", (WIDTH, HEIGHT), (9, 99, 200, 0)), "PNG")
    for colour, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        yield f"16 bits x {channels}", png(deep(channels), 16, colour)
    yield "interlaced", interlaced()
    yield (
        "gamma",
        png(np.array(photo()).reshape(HEIGHT, -1), 8, 2, chunk(b"gAMA", struct.pack(">I", 100000))),
    )
    yield "exif 6", saved(photo(), "PNG", exif=rotated(6))
    yield "animated", saved(photo(), "PNG", save_all=True, append_images=[photo().rotate(90)])
    yield "size 1 1", saved(photo(size=(1, 1)), "PNG")
    yield "size 1 300", saved(photo(size=(1, 300)), "PNG")
    yield "trailing bytes", plain + b"trailing" * 40
    yield "cut by 1", plain[:-1]
    yield "cut by 8", plain[:-8]
    yield "cut by 12", plain[:-12]
    yield "cut by 30", plain[:-30]
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
    late = chunk(b"tEXt", b"a\0b")[:-4] + bytes(4)
    yield "late text with a wrong sum", plain[:-12] + late + plain[-12:]


def others() -> Iterator[tuple[str, bytes]]:
    """Other formats, and what is none."""
    yield "gif", saved(photo("P"), "GIF")
    yield "gif transparent", saved(photo("P"), "GIF", transparency=2)
    yield "gif animated", saved(photo("P"), "GIF", save_all=True, append_images=[photo("L")])
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"bmp {mode}", saved(photo(mode), "BMP")
    plain = saved(photo(), "BMP")
    yield "bmp cut", plain[:-100]
    yield "bmp cut by 1", plain[:-1]
    yield "bmp trailing bytes", plain + b"trailing"
    yield "bmp of 4 bits", bmp(np.array(photo().quantize(16)).repeat(2, 1)[:, ::4] * 17, 4, 0)
    yield "bmp of 16 bits", bmp(deep(1), 16, 0)
    coded = [b"\1" + bytes([level]) for level in np.array(photo("L"))[0]]
    rows = [np.frombuffer(b"".join(coded) + b"\0\0", np.uint8)] * HEIGHT
    yield "bmp in runs", bmp(np.array(rows), 8, 1)
    upside = bytearray(plain)
    upside[22:26] = struct.pack("<i", -HEIGHT)
    yield "bmp top down", bytes(upside)
    for mode in ("RGB", "RGBA"):
        yield f"webp {mode}", saved(photo(mode), "WEBP")
        yield f"webp lossless {mode}", saved(photo(mode), "WEBP", lossless=True)
    yield "webp exif 6", saved(photo(), "WEBP", exif=rotated(6))
    yield "webp animated", saved(photo(), "WEBP", save_all=True, append_images=[photo().rotate(90)])
    yield "webp cut", saved(photo(), "WEBP")[:-100]
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"):
        yield f"tiff {mode.replace(';', ' ')}", saved(photo(mode), "TIFF")
    for coding in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        yield f"tiff by {coding}", saved(photo(), "TIFF", compression=coding)
    yield "tiff by group4", saved(photo("1"), "TIFF", compression="group4")
    yield "tiff white is zero", saved(photo("L"), "TIFF", tiffinfo={262: 0})
    yield "tiff P by lzw", saved(photo("P"), "TIFF", compression="tiff_lzw")
    yield "tiff YCbCr by lzw", saved(photo("YCbCr"), "TIFF", compression="tiff_lzw")
    yield "tiff exif 6", saved(photo(), "TIFF", exif=rotated(6))
    yield "tiff of pages", saved(photo(), "TIFF", save_all=True, append_images=[photo("L")])
    yield "tiff big", saved(photo(), "TIFF", big_tiff=True)
    yield "tiff cut", saved(photo(), "TIFF")[:-100]
    yield "ppm", saved(photo(), "PPM")
    yield "pgm", saved(photo("L"), "PPM")
    yield "pbm", saved(photo("1"), "PPM")
    yield "ppm as text", b"P3 2 2 255\n" + b"1 2 3 4 5 6 7 8 9 10 11 12\n"
    yield "ppm of 16 bits", b"P6 2 2 65535\n" + bytes(range(24))
    yield "pgm of 16 bits", b"P5 4 4 65535\n" + bytes(range(0, 256, 8))
    yield "ppm of level 100", b"P6 2 2 100\n" + bytes(range(12))
    yield "ppm cut", saved(photo(), "PPM")[:-100]
    yield "ppm comment", b"P6\n# made by hand\n2 2\n255\n" + bytes(range(12))
    yield "jpeg 2000", saved(photo(), "JPEG2000")
    yield "jpeg 2000 codestream", saved(photo(), "JPEG2000", no_jp2=True)
    yield "avif", saved(photo(), "AVIF")
    yield "ico", saved(photo(), "ICO", sizes=[(32, 32)])
    yield "tga", saved(photo(), "TGA")
    yield "pcx", saved(photo(), "PCX")
    yield "eps", saved(photo(), "EPS")
    yield "pdf", saved(photo(), "PDF")
    yield "dds", saved(photo(), "DDS")
    yield "icns", saved(photo(size=(32, 32)), "ICNS")
    yield "svg", b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'></svg>"
    yield "empty", b""
    yield "one byte", b"\xff"
    yield "zeros", bytes(5000)
    yield "text", b"<html>404</html>" * 20
    yield "noise", np.random.default_rng(1).bytes(5000)
    yield "npy", b"\x93NUMPY" + bytes(200)


@cache
def odd_images() -> dict[str, bytes]:
    """Each content by its name; `file_name` gives it the ending that those of ImageNet have."""
    return {
        f"{kind} {name}".strip(): content
        for kind, made in (("jpeg", jpegs()), ("png", pngs()), ("", others()))
        for name, content in made
    }


def file_name(name: str) -> str:
    """The name of the file, whatever is in it, in a class folder."""
    return f"{name}.JPEG"


REFUSED = {
    "empty": ["empty"],
    "not an image": [
        *("jpeg leading bytes", "pdf", "svg", "one byte", "zeros", "text", "noise", "npy"),
    ],
    "truncated": [
        *("jpeg cut by 1", "jpeg cut by 2", "jpeg cut by 200", "jpeg cut in its header"),
        *("jpeg only a start", "jpeg only start and end"),
        # PIL knows no such JPEG, and takes its header for cut.
        *("jpeg frame of 12 bits", "jpeg frame of height 0"),
        *("png cut by 1", "png cut by 8", "png cut by 12", "png cut by 30", "png cut in half"),
        *("png cut in its header", "png rows missing", "png stream cut"),
        "png text with a wrong sum",
        *("bmp cut", "bmp cut by 1", "tiff cut", "ppm cut"),
    ],
    "broken": [
        *("jpeg frame lossless", "jpeg frame 65500", "jpeg without tables"),
        *("png bits flipped", "png sum wrong", "png huge", "png stream with a wrong sum"),
        *("png without palette", "png unknown chunk that counts", "webp cut"),
    ],
    "unshared": [
        "jpeg cmyk without Adobe",
        *(f"png 16 bits x {channels}" for channels in (1, 2, 3, 4)),
        *("gif", "gif transparent", "gif animated", "bmp of 16 bits"),
        *("tiff 1", "tiff by group4", "tiff LA", "tiff LAB", "tiff I 16", "tiff I", "tiff F"),
        "tiff exif 6",
        *("ppm of level 100", "ppm of 16 bits", "pgm of 16 bits"),
        *("jpeg 2000", "jpeg 2000 codestream", "avif", "ico", "tga", "pcx", "eps", "dds", "icns"),
    ],
}
"""The names, without their ending, of those that no loader is to read, by what `--check` says."""

HEADER_ONLY = ["jpeg frame lossless", "jpeg without tables"]
"""Those of them whose header and end are in order, so that an index takes them for whole."""

ONE_LEVEL = [
    *("jpeg cmyk", "jpeg cmyk progressive", "jpeg ycck"),
    *("tiff CMYK", "tiff YCbCr", "tiff P", "tiff P by lzw"),
]
"""The names of those whose pixels differ by one level between the loaders, before any resizing."""
