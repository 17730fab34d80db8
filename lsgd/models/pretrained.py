"""The trained weights that torchvision or timm offers for a network: from its cache, or downloaded.

They are what model.options.pretrained=true asks for; a run records them as model.start.
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lsgd.comm import Comm, all_or_raise
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.fields import as_override
from lsgd.recipe.start_file import with_start_hash

TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
"""The names of the file of weights in a repository of timm on the Hub, the newer one first."""


def with_pretrained_weights(recipe: Recipe, comm: Comm) -> Recipe:
    """Replace model.options.pretrained=true by model.start, the library's file of these weights.

    The file is in the library's own cache, into which one process of each machine downloads it if
    it is missing. Raises UsageError on all processes if there are no such weights, or one cannot
    download them.
    """
    if not recipe.model.starts_pretrained:
        return recipe
    hosts = comm.gather_objects(platform.node())
    is_first = hosts.index(hosts[comm.rank]) == comm.rank
    all_or_raise(comm, lambda: _resolve(recipe) if is_first else recipe)
    resolved = all_or_raise(comm, lambda: _resolve(recipe))
    if comm.rank == 0 and (advice := _normalisation_advice(recipe)):
        print(f"lsgd: {advice}", file=sys.stderr)
    return resolved


def _resolve(recipe: Recipe) -> Recipe:
    # A slow import, which only networks of a library need.
    from lsgd.models.library_networks import find_builder, saving_code

    find_builder(recipe)  # refuses an unknown name and a library that is not installed
    library, _, name = recipe.model.name.partition("/")
    try:
        file = _timm_file(name) if library == "timm" else _torchvision_file(name)
    except (OSError, ValueError, RuntimeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UsageError(
            f"model.options.pretrained=true finds no weights of model={recipe.model.name} in the "
            f"cache, and cannot download them ({why}); save them where the network is reachable, "
            f"by {saving_code(library, name)}, and write model.start={name}.pth instead"
        ) from None
    if file is None:
        raise UsageError(
            f"model.options.pretrained=true asks for trained weights, and {library} has none of "
            f"model={recipe.model.name}; leave it out, or write model.start=PATH of your own"
        )
    return replace(recipe, model=with_start_hash(recipe.model.started_from(str(file))))


def _normalisation_advice(recipe: Recipe) -> str:
    """Return a sentence if the weights were trained with other means or deviations of pixels."""
    library, _, name = recipe.model.name.partition("/")
    data = recipe.data
    theirs = _timm_normalisation(name) if library == "timm" else _torchvision_normalisation(name)
    if data.channels != len(theirs.get("mean", ())):  # of grey images the recipe has its own
        return ""
    others = {
        key: list(values)
        for key, values in theirs.items()
        if not np.allclose(values, getattr(data, key), atol=1e-3)
    }
    if not others:
        return ""
    has = " ".join(f"data.{key}={as_override(getattr(data, key))}" for key in others)
    wanted = " ".join(f"'data.{key}={as_override(values)}'" for key, values in others.items())
    return (
        f"model.options.pretrained=true starts from weights of model={recipe.model.name} for "
        f"other pixels than {has}; unless these are meant, write {wanted}"
    )


def _torchvision_normalisation(name: str) -> dict[str, Sequence[float]]:
    """Return the mean and std of the pixels on which torchvision's default weights were trained."""
    from lsgd.vision import models

    preset = models.get_model_weights(name).DEFAULT.transforms()
    keys = [key for key in ("mean", "std") if hasattr(preset, key)]
    return {key: getattr(preset, key) for key in keys}


def _timm_normalisation(name: str) -> dict[str, Sequence[float]]:
    """Return the mean and std of the pixels on which timm's default weights were trained."""
    import timm

    known = timm.get_pretrained_cfg(name)
    return {key: getattr(known, key) for key in ("mean", "std") if getattr(known, key, None)}


def _torchvision_file(name: str) -> Path | None:
    """Return the file of torchvision's default weights of a network; None if it has none."""
    from lsgd.vision import models

    weights = getattr(models.get_model_weights(name), "DEFAULT", None)
    return weights and _cached(weights.url)


def _timm_file(name: str) -> Path | None:
    """Return the file of timm's default weights of a network; None if it has none."""
    import timm

    known = timm.get_pretrained_cfg(name)
    if known is None or not known.hf_hub_id:
        return _cached(known.url) if known is not None and known.url else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    for file in (known.hf_hub_filename, *TIMM_FILES):
        try:
            if file:
                return Path(hf_hub_download(known.hf_hub_id, file))
        except RemoteEntryNotFoundError:
            continue  # the repository has another form of the file
    return None


def _cached(url: str) -> Path:
    """Return the file of a URL in the cache of torch.hub, after a download if it is missing."""
    from torch import hub

    file = Path(hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        digits = hub.HASH_REGEX.search(file.name)  # in the names of most files
        hub.download_url_to_file(url, str(file), digits[1] if digits else None, progress=False)
    return file
