"""RandAugment and TrivialAugment by torchvision, drawn from a seed for each image."""

from importlib import import_module
from threading import Lock
from typing import Any

import torch

from lsgd.recipe import Data
from lsgd.rules.augmentation import parts_of, policy_of

_ONE_AT_A_TIME = Lock()
"""Held while torchvision draws from torch's generator, which all threads of a process share."""


class AugmentationPolicy:
    """A policy of torchvision: random operations, such as a rotation or a posterisation, by image.

    RandAugment (Cubuk et al. 2019) applies several operations of one magnitude, TrivialAugment
    (Müller and Hutter 2021) one operation of a random magnitude. Both resample bilinearly.
    """

    def __init__(self, data: Data) -> None:
        """Make the policy that the augmentation of a recipe's data has."""
        # Imported here: torchvision takes a second, and most small datasets have no policy.
        from lsgd.vision import transforms

        v2 = import_module(f"{transforms.__name__}.v2")
        bilinear = transforms.InterpolationMode.BILINEAR
        if policy_of(parts_of(data.augmentation)) == "rand_augment":
            self.transform = v2.RandAugment(
                data.rand_operations, data.rand_magnitude, interpolation=bilinear
            )
        else:
            self.transform = v2.TrivialAugmentWide(interpolation=bilinear)

    def apply(self, image: Any, seed: int) -> Any:
        """Return the changed image, of PIL or a uint8 tensor; equal seeds change it equally.

        The state of torch's generator is left as it is.
        """
        generator = torch.default_generator
        with _ONE_AT_A_TIME:
            state = generator.get_state()
            generator.manual_seed(int(seed))
            try:
                return self.transform(image)
            finally:
                generator.set_state(state)
