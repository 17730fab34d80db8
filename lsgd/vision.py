"""The modules of torchvision, importable beside a CPU build of torch too.

torchvision on PyPI is a CUDA build. Beside a CPU torch its compiled operators do not load, and its
import fails with `operator torchvision::nms does not exist`. It is enough to declare the two
operators to which it refers: models, datasets and transforms need no compiled operator. They are
declared only if they do not load, since a second declaration would abort the process.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    for _module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_module]
    # Kept in a module variable, since the declarations end with the object.
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
