"""From conf/, recipes/ and `key=value` words to a checked Recipe: the only file that knows Hydra."""

import argparse
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from lsgd import paths
from lsgd.errors import Refused
from lsgd.recipe import Recipe, check, rehearsal

# One variable less for a user to set: a missing key is ours to explain, not a traceback's.
os.environ.setdefault("HYDRA_FULL_ERROR", "1")

EPILOG = """\
{recipes}

groups, one file each in conf/:
{groups}

any field of the recipe is a word of its own:
  worker_batch=64 epochs=30 seed=1        what is computed
  comm=torch inputs=synthetic workers_per_pass=8 run_dir=runs/a
                                          where and how fast; the trajectory stays the same
  data.root=/data/imagenet                where the images are
  rehearse=true                           the same run in miniature, in seconds
  --cfg                                   print the run's configuration and train nothing
"""


class RecipesRoot(SearchPathPlugin):
    """Makes recipes/ a root of Hydra's search path, beside conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it composes."""
        search_path.append("lsgd", f"file://{paths.recipes_dir()}")


Plugins.instance().register(RecipesRoot)


def load(argv: Sequence[str], *, program: str, about: str) -> Recipe:
    """The recipe that a command line asks for.

    Raises Refused with one sentence for whatever is wrong with it; `--help` and `--cfg` print and
    raise SystemExit(0).
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        usage=f"python -m {program} +recipe=NAME [key=value ...]",
        epilog=EPILOG.format(recipes=_recipe_list(), groups=_group_list()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
    parser.add_argument("--cfg", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    recipe = load_recipe(arguments.words)
    if arguments.cfg:
        print(to_yaml(recipe), end="")
        raise SystemExit(0)
    return recipe


def load_recipe(words: Sequence[str]) -> Recipe:
    """The checked recipe that these Hydra overrides compose; raises Refused."""
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "batch_size":
            _refuse_batch_size(value, words)
        if key == "recipe" and not word.startswith("+"):
            raise Refused(f"'{word}' needs a plus sign, since a recipe is added to conf/: write +recipe={value}")
    recipe = from_mapping(_compose(words))
    return rehearsal(recipe) if recipe.rehearse else recipe


def from_mapping(values: Mapping[str, Any] | DictConfig, *words: str) -> Recipe:
    """The checked recipe with these fields, changed by `key=value` words; raises Refused."""
    try:
        merged = OmegaConf.merge(_schema(), values, OmegaConf.from_dotlist(list(words)))
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise Refused(_missing(missing))
        recipe = OmegaConf.to_object(merged)
    except ConfigKeyError as error:
        _refuse_key(str(error.full_key))
    except ValidationError as error:
        raise Refused(f"{error.full_key}: {_first_line(error)}; see --cfg for the fields and their values") from None
    except OmegaConfBaseException as error:
        raise Refused(_first_line(error)) from None
    assert isinstance(recipe, Recipe)
    check(recipe)
    return recipe


def to_yaml(recipe: Recipe) -> str:
    """The recipe's fields, and what follows from them as comments."""
    derived = (
        f"# batch_size: {recipe.batch_size}\n"
        f"# steps_per_epoch: {recipe.steps_per_epoch}\n"
        f"# lr: {recipe.lr(0):g} at step 0\n"
        f"# fingerprint: {recipe.fingerprint}\n"
    )
    return derived + OmegaConf.to_yaml(OmegaConf.structured(recipe))


def recipes() -> list[str]:
    """Names of all shipped recipes."""
    return sorted(path.stem for path in (paths.recipes_dir() / "recipe").glob("*.yaml"))


def _schema() -> DictConfig:
    schema = OmegaConf.structured(Recipe)
    # The dataclasses are frozen, which OmegaConf takes for read-only, at every level of its own.
    for node in (schema, *(schema._get_node(entry.name) for entry in fields(Recipe))):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)
    return schema


def _compose(words: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(paths.conf_dir()), version_base="1.3", job_name="lsgd"):
            return compose("config", overrides=list(words))
    except OverrideParseException as error:
        raise Refused(f"'{error.override}' is not a word of the form key=value; write for example epochs=30") from None
    except HydraException as error:
        _refuse_composition(error, words)
    except OmegaConfBaseException as error:
        raise Refused(_first_line(error)) from None
    finally:
        GlobalHydra.instance().clear()


def _refuse_composition(error: HydraException, words: Sequence[str]) -> NoReturn:
    text = str(error)
    if unknown := re.search(r"(?:Could not find|In '.*?': Could not (?:find|load)) '([\w-]+)/([^']+)'", text):
        group, name = unknown.groups()
        known = recipes() if group == "recipe" else _options(group)
        word = f"+recipe={name}" if group == "recipe" else f"{group}={name}"
        raise Refused(f"{word} does not exist; {_did_you_mean(name, known)}") from None
    if unknown := re.search(r"Could not override '([^']+)'", text):
        _refuse_key(unknown.group(1))
    if unknown := re.search(r"Key '([^']+)' is not in struct", text):
        _refuse_key(unknown.group(1))
    raise Refused(f"{' '.join(words)}: {_first_line(error)}") from None


def _refuse_key(key: str) -> NoReturn:
    hint = _did_you_mean(key, [*_keys(), *_groups()])
    raise Refused(f"there is no key '{key}'; {hint}") from None


def _refuse_batch_size(value: str, words: Sequence[str]) -> NoReturn:
    rest = [w for w in words if w.lstrip("+~").partition("=")[0] != "batch_size"]
    try:
        n = load_recipe(rest).worker_batch
        wanted = int(value)
    except (Refused, ValueError):
        raise Refused("batch_size is workers x worker_batch and not set itself; write workers=…") from None
    if wanted < n or wanted % n:
        raise Refused(
            f"batch_size is workers x worker_batch, and {wanted} is not a multiple of worker_batch={n}; "
            f"write workers={max(1, round(wanted / n))}"
        )
    raise Refused(f"batch_size is workers x worker_batch = {wanted // n} x {n}; write workers={wanted // n}")


def _missing(keys: Sequence[str]) -> str:
    if "name" in keys:
        return f"no recipe is given; write +recipe=NAME with one of: {', '.join(recipes())}"
    return f"{', '.join(keys)} has no value; write {keys[0]}=…"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    near = near or [k for k in known if word in k]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known)}" if len(known) < 12 else "see --help for what there is"


def _keys() -> list[str]:
    keys = []
    for entry in fields(Recipe):
        nested = isinstance(entry.type, type) and is_dataclass(entry.type)
        keys += [f"{entry.name}.{f.name}" for f in fields(entry.type)] if nested else [entry.name]
    return keys


def _groups() -> list[str]:
    return sorted(path.name for path in paths.conf_dir().iterdir() if path.is_dir())


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (paths.conf_dir() / group).glob("*.yaml"))


def _group_list() -> str:
    return "\n".join(f"  {group}={'|'.join(_options(group))}" for group in _groups())


def _recipe_list() -> str:
    lines = ["recipes:"]
    for name in recipes():
        lines.append(f"  +recipe={name:<24} {_claim(paths.recipes_dir() / 'recipe' / f'{name}.yaml')}")
    return "\n".join(lines)


def _claim(path: Path) -> str:
    """The first comment line of a recipe says what it claims."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("# ") and "@package" not in line]
    return lines[0][2:] if lines else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
