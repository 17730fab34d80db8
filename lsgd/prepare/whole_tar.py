"""The reading of tar archives of which no member may be lost without an error.

Python's tarfile takes a damaged header, one that is cut short and the end mark of the first of
several joined archives for the end of the archive.
"""

import tarfile
from tarfile import ReadError, TarFile, TarInfo
from typing import Any, Self

SWALLOWED = (
    tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
    tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
)
"""The errors that tarfile takes for the end of an archive, unless it is the first header's."""
BLOCK = 2**20
"""The bytes behind an end mark that are read at a time."""


class _StrictHeader(TarInfo):
    """A tar member whose header raises ReadError if it is damaged or cut short."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        """Read the next header of a tar file, as tarfile itself does for each member."""
        try:
            return super().fromtarfile(tarfile)
        except SWALLOWED as error:
            raise ReadError(str(error)) from None


class WholeTar(TarFile):
    """A tar file that yields all of its members, or raises ReadError.

    It may lack the end mark if it ends behind a member, as a writer leaves it that is not closed.
    An inner archive begins at the position of its file and ends at `end`.
    """

    tarinfo = _StrictHeader

    def __init__(self, *args: Any, end: int | None = None, **kwargs: Any) -> None:
        self.end = end
        super().__init__(*args, **kwargs)

    def next(self) -> TarInfo | None:
        """Return the next member, or None behind the last; raises ReadError if data follow it."""
        waits = self.firstmember is not None  # type: ignore[attr-defined]
        if self.end is not None and self.offset >= self.end and not waits:
            return None
        member = super().next()
        if member is None:
            self._check_rest()
        return member

    def _check_rest(self) -> None:
        """Raise ReadError unless all that follows the end mark is zeros, the padding of tar."""
        assert self.fileobj is not None
        most = BLOCK
        while True:
            if self.end is not None:
                most = max(0, min(BLOCK, self.end - self.fileobj.tell()))
            if not (block := self.fileobj.read(most)):
                return
            if block.count(0) < len(block):
                raise ReadError(
                    "data follow its end mark, as in joined archives, which only `tar -i` reads"
                )
