"""The interfaces and types with which parts of one's own are written, such as loaders.

An optimizer derives from torch.optim.Optimizer, a network from torch.nn.Module, and a workload from
`OwnWorkload`. A loader has the methods of `Inputs`, a decay of the learning rate that of `LrDecay`,
an augmentation that of `Augmentation`, and a metric those of `ImageMetric`. A recipe names them by
their import path, such as optim=mypackage.rules:Lion, and their options by
optim.options.NAME=VALUE. These names stay from version to version.

    >>> import numpy as np
    >>> draws = uniforms(np.array([7, 8]), seed=0, epoch=3)
    >>> draws.shape, bool((0 <= draws).all() and (draws < 1).all())
    ((4, 2), True)
    >>> bool((uniforms(np.array([8]), seed=0, epoch=3)[:, 0] == draws[:, 1]).all())
    True
"""

import numpy as np
from numpy.typing import NDArray

from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.inputs import Augmentation, Batch, ExampleColumns, Inputs
from lsgd.recipe import Data, Recipe
from lsgd.rules import philox
from lsgd.rules.sampler import MicroBatch
from lsgd.rules.schedule import LrDecay
from lsgd.workloads import CarriedState
from lsgd.workloads.own import OwnWorkload
from lsgd.workloads.own_metric import ImageMetric

__all__ = [
    "Augmentation",
    "Batch",
    "CarriedState",
    "Comm",
    "Data",
    "ExampleColumns",
    "ImageMetric",
    "Inputs",
    "LrDecay",
    "MicroBatch",
    "OwnWorkload",
    "Recipe",
    "UsageError",
    "uniforms",
]

FIRST_COUNTER = 2**31
"""The first counter of the draws of own parts, so that they differ from those of lsgd."""


def uniforms(
    examples: NDArray[np.int64], *, seed: int, epoch: int, draw: int = 0
) -> NDArray[np.float64]:
    """Return four random numbers in [0, 1) for each example, shape (4, examples).

    They are a function of the arguments alone, so that they are the same on any number of processes
    and after a resume. Different values of `draw` give independent numbers.
    """
    return philox.uniforms((examples, epoch, 0, FIRST_COUNTER + draw), key=seed)
