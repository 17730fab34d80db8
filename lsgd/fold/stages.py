"""The order of the operations of a batch: stages first, and depth only inside a stage.

Calls of one kind can be made at once if none needs what another of them gives. To take all that
have the same depth, the longest way from a call without arguments, is the rule of TensorFlow Fold
(Looks et al. 2017, section 2). It makes the last step of all examples, such as the logits of a
tree, as many calls as there are depths of trees. So kinds of calls are ordered first, by what they
need of each other: those that need each other in turn, as the nodes of a tree do, make a stage, and
only there depth counts.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=1024)
def stages(kinds: int, edges: frozenset[tuple[int, int]]) -> tuple[int, ...]:
    """The stage of each kind of call, where an edge goes from a kind that gives to one that takes.

    An edge within a strongly connected part of this graph has the same stage at both ends, and any
    other edge a higher one where it goes to.

    >>> stages(4, frozenset({(0, 1), (1, 1), (1, 2), (2, 1), (2, 3)}))
    (1, 3, 3, 4)
    """
    # Not of bools, which numpy multiplies a hundred times slower.
    reaches = np.eye(kinds, dtype=np.float32)
    for giver, taker in edges:
        reaches[giver, taker] = 1
    while not np.array_equal(further := np.minimum(reaches @ reaches, 1), reaches):
        reaches = further
    # What reaches a kind also reaches all that this one reaches, so their number rises along edges,
    # and stands still only where an edge can be gone back.
    return tuple(reaches.sum(0).astype(int).tolist())


def depths(
    kinds: Sequence[int], counts: Sequence[int], givers: Sequence[int], stage: Sequence[int]
) -> list[int]:
    """The depth of each call inside its stage: 0 if all that it takes is of earlier stages.

    A call has a kind and a count of what it takes; `givers` are the calls that give this, call by
    call.

    >>> depths([0, 1, 1, 2], [0, 1, 1, 1], [0, 1, 1], stage=[1, 2, 3])
    [0, 0, 1, 0]
    """
    levels: list[int] = []
    stages_of_calls = [stage[kind] for kind in kinds]
    read = 0
    for own, count in zip(stages_of_calls, counts, strict=True):
        depth = 0
        if count:
            for giver in givers[read : read + count]:
                if levels[giver] >= depth and stages_of_calls[giver] == own:
                    depth = levels[giver] + 1
            read += count
        levels.append(depth)
    return levels
