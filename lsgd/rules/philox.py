"""Counter-based random numbers: a draw is a function of its counter and key, and of nothing else.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). There is no
generator to save, to restore or to keep apart between processes: whoever asks for the same
counter gets the same words, today and in the resumed run.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def words(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int
) -> NDArray[np.uint64]:
    """Four random 32-bit words per counter, as uint64 of shape (4, *broadcast shape).

    `counter` holds four arrays of 32-bit integers that broadcast together, `key` has 64 bits.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) & _WORD for c in counter))
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        # 32 x 32 bits fit in 64, so the product is exact and its halves are the two words.
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
    """Four uniform numbers in [0, 1) per counter, shape (4, *broadcast shape), 32 bits each."""
    return words(counter, key) * np.float64(2.0**-32)
