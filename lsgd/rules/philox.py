"""Counter-based random numbers: each draw is a pure function of its counter and key.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). There is no
generator state to save, to restore or to keep apart between processes: the same counter gives the
same numbers on every process and in a resumed run.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def uint32_blocks(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int
) -> NDArray[np.uint64]:
    """Return four random 32-bit integers per counter, as uint64 of shape (4, *broadcast shape).

    `counter` holds four arrays of 32-bit integers that broadcast together, `key` has 64 bits.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) & _WORD for c in counter))
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        # A product of 32 x 32 bits fits into 64 bits; its halves are the two results.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _WORD,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3))


def uniforms(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int
) -> NDArray[np.float64]:
    """Return four uniform random numbers in [0, 1) per counter, with 32 random bits each.

    The shape is (4, *broadcast shape).
    """
    return uint32_blocks(counter, key) * np.float64(2.0**-32)
