"""The check that a PNG is complete, which PIL tests less strictly than DALI's reader."""

import zlib

PIECE = 2**16
"""The most bytes that are decompressed at a time, and that are obtained."""
START = 8
"""The number of bytes before the first chunk."""
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""The samples per pixel, by colour type."""
PALETTE = 3
"""The colour type whose samples are palette indices."""
ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""The passes of an interlaced image: first column, first row and the step of each."""


def fault(content: bytes) -> tuple[str, str] | None:
    """Return the defect of a PNG file as `truncated` or `broken` with a detail, or None.

    `content` is a file whose header PIL has read. Ancillary chunks are not checked, nor what
    follows the last chunk. Source: PNG specification, second edition, 4.5 and 5.
    """
    kinds, header, coded, position = list[bytes](), b"", list[bytes](), START
    while not kinds or kinds[-1] != b"IEND":
        begin = position + 8
        end = begin + int.from_bytes(content[position : position + 4])
        kind, body, position = content[begin - 4 : begin], content[begin:end], end + 4
        if position > len(content):
            return "truncated", f"{len(content)} bytes, without the chunk that ends it"
        if kind[:1].islower():
            continue
        if zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(content[end:position]):
            return "broken", f"the checksum of its {kind.decode('latin-1')} is wrong"
        if kind == b"IHDR":
            header = body
        if kind == b"IDAT":
            coded.append(body)
        if kind != b"IDAT" or kinds[-1] != b"IDAT":
            kinds.append(kind)
    palettes = ([], [b"PLTE"]) if header[9] != PALETTE else ([b"PLTE"],)
    if kinds not in [[b"IHDR", *palette, b"IDAT", b"IEND"] for palette in palettes]:
        return "broken", f"its chunks are {' '.join(kind.decode('latin-1') for kind in kinds)}"
    try:
        length, is_whole = _measure(b"".join(coded))
    except zlib.error as error:
        return "broken", str(error)
    if not is_whole or length < _length(header):
        return "truncated", f"{length} of {_length(header)} bytes of pixels"
    return None


def _measure(coded: bytes) -> tuple[int, bool]:
    """Return the uncompressed length of a zlib stream, and whether the stream has its end.

    The bytes are decompressed in pieces, and none is kept: a small file can hold a thousand times
    its own length.
    """
    stream, length = zlib.decompressobj(), 0
    for begin in range(0, len(coded), PIECE):
        rest = coded[begin : begin + PIECE]
        while not stream.eof:
            pixels = stream.decompress(rest, PIECE)
            length, rest = length + len(pixels), stream.unconsumed_tail
            if len(pixels) < PIECE:
                break
    return length, stream.eof


def _length(header: bytes) -> int:
    """Return the uncompressed length in bytes of a PNG's pixels, from its IHDR chunk."""
    width, height = int.from_bytes(header[:4]), int.from_bytes(header[4:8])
    bits = header[8] * CHANNELS[header[9]]
    length = 0
    for left, top, step_x, step_y in ADAM7 if header[12] else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // step_x), -(-(height - top) // step_y)
        # Each row begins with a byte that names its filter; a pass without columns has no rows.
        length += rows * (1 + -(-columns * bits // 8)) if columns > 0 and rows > 0 else 0
    return length
