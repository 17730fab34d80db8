"""The order of batched calls: by stage first, and by depth only within a stage.

Calls of one kind can be batched if none needs the result of another. TensorFlow Fold (Looks et al.
2017, section 2) batches calls of equal depth, the longest path from a call without arguments. It
splits the last operation of all examples, such as the logits of a tree, into as many calls as there
are depths of trees. So here the kinds of calls are ordered first, by their dependencies: kinds that
depend on each other, such as the nodes of a tree, form a stage, and depth counts only within a
stage.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=1024)
def call_stages(kinds: int, edges: frozenset[tuple[int, int]]) -> tuple[int, ...]:
    """Return the stage of each kind of call, given edges from producing to consuming kinds.

    The two ends of an edge have the same stage if they are in one strongly connected component;
    otherwise the consuming kind has a higher stage.

    >>> call_stages(4, frozenset({(0, 1), (1, 1), (1, 2), (2, 1), (2, 3)}))
    (1, 3, 3, 4)
    """
    # Not bools, which numpy multiplies a hundred times slower.
    reaches = np.eye(kinds, dtype=np.float32)
    for giver, taker in edges:
        reaches[giver, taker] = 1
    while not np.array_equal(further := np.minimum(reaches @ reaches, 1), reaches):
        reaches = further
    # All that reaches a kind also reaches the kinds behind it, so the number of predecessors
    # increases along edges, and stays equal only within a strongly connected component.
    return tuple(reaches.sum(0).astype(int).tolist())


def call_depths(
    kinds: Sequence[int], counts: Sequence[int], givers: Sequence[int], stage: Sequence[int]
) -> list[int]:
    """Return each recorded call's depth in its stage; 0 if its inputs are of earlier stages.

    Each call has a kind and a number of inputs; `givers` has the calls that produce these inputs,
    call by call.

    >>> call_depths([0, 1, 1, 2], [0, 1, 1, 1], [0, 1, 1], stage=[1, 2, 3])
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
