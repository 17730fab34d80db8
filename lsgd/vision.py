"""torchvision, importable beside a CPU build of torch too.

torchvision on PyPI is a CUDA build. Beside a CPU torch its compiled operators do not load, and its
import stops at `operator torchvision::nms does not exist`. Declaring the two operators that it
refers to is enough: models, datasets and transforms need no compiled one.
"""

import torch

if not torch.backends.cuda.is_built():
    # Kept, since the declarations end with the object.
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
