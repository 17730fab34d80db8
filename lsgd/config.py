"""The composition of recipes from conf/, recipes/ and overrides; only this file uses Hydra."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import MISSING, asdict, fields, replace
from functools import cache
from pathlib import Path, PurePath
from threading import RLock
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra.conf import JobConf, OverridesConf, RuntimeConf
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper, get_yaml_loader
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.override_syntax import (
    ALIASES,
    PATH_FIELDS,
    canonical,
    format_override,
    key_and_value,
    parse_text,
    quote,
)
from lsgd.own_parts import Plain, first_line, is_import_path
from lsgd.recipe import CommSettings, Data, InputsSettings, Recipe
from lsgd.recipe.checks import check_recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.epoch_scaling import scale_epochs
from lsgd.recipe.fields import (
    AUTO,
    TIMED,
    all_fields,
    applies_to,
    as_before_values,
    default,
    group_of,
)
from lsgd.recipe.image_folder import INDEXED_FIELDS, count_images, without_skipped
from lsgd.recipe.overrides import (
    base_of_part,
    check_overrides,
    config_groups,
    field_keys,
    missing_message,
    refuse_deletion,
    refuse_key,
    refuse_long_number,
    refuse_override,
    refuse_type,
    text_keys,
)
from lsgd.recipe.overrides import choices as choices
from lsgd.recipe.overrides import override_keys as override_keys
from lsgd.recipe.overrides import sorted_recipe_names as sorted_recipe_names
from lsgd.recipe.own_files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_VALUES,
    OwnFile,
    OwnRecipe,
    base_file,
    check_events,
    own_recipe,
)
from lsgd.recipe.part_sources import check_saved_parts, with_own_parts
from lsgd.recipe.start_file import with_start_hash
from lsgd.typed import (
    FieldError,
    MissingValueError,
    UnknownKeyError,
    WrongTypeError,
    make_typed,
    merge,
    nest,
    select,
)
from lsgd.untrusted_files import read_bounded


class OverrideError(ValueError):
    """The error for an override that cannot be read."""


_FAST = [yaml.CSafeLoader] if yaml.__with_libyaml__ else []


class _Loader(*_FAST, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's reader of YAML, by which 1e-3 is a number, on the fast parser if there is one."""


class ShippedConfigs(ConfigSource):
    """A Hydra source of YAML files that parses each version of a file once per process."""

    @staticmethod
    def scheme() -> str:
        """Return the scheme of this source's addresses, such as lsgd in lsgd:///opt/lsgd/conf."""
        return "lsgd"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load a copy of a configuration file, whose name has no ending."""
        if config_path == _HYDRA:
            # Only what a composition writes: no logs, launchers and sweepers.
            parts = {"overrides": OverridesConf(), "runtime": RuntimeConf(), "job": JobConf("lsgd")}
            settings = OmegaConf.create(parts)
            return ConfigResult(self.provider, self.full_path(), settings, {"package": None})
        if (own := _own_configs.get(config_path)) is not None:
            return ConfigResult(self.provider, self.full_path(), deepcopy(own), _GLOBAL)
        file = self._file(config_path)
        state = file.stat()
        config, package = _parse_config(file, state.st_mtime_ns, state.st_size)
        return ConfigResult(self.provider, self.full_path(), deepcopy(config), {"package": package})

    def available(self) -> bool:
        """Return whether the folder of this source exists."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is a folder of this source."""
        return Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is a configuration file of this source."""
        known = config_path == _HYDRA or config_path in _own_configs
        return known or self._file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """List the configuration files of a folder; lsgd has no folders inside of these."""
        return paths.yaml_names(Path(self.path, config_path))

    def _file(self, config_path: str) -> Path:
        return Path(self.path, f"{config_path.removesuffix('.yaml')}.yaml")


@cache
def _parse_config(file: Path, _modified: int, _size: int) -> tuple[Any, str | None]:
    """Parse a YAML file of Hydra's into its configuration and the package that it names."""
    header = file.read_text(encoding="utf-8")[:512]  # as far as Hydra's own source of files looks
    package = re.search(r"^\s*#+\s*@package\s+(\S+)", header, re.MULTILINE)
    return OmegaConf.load(file), package and package[1]


def _config_loader() -> ConfigLoaderImpl:
    """Return a Hydra loader of lsgd's configurations that shares nothing with the program's Hydra.

    Hydra's public functions compose from one search path, store and state of the whole process,
    which belong to the program that imports lsgd.
    """
    loader = ConfigLoaderImpl(ConfigSearchPathImpl())
    schema = StructuredConfigSource("schema", "structured://")
    schema.store = type.__call__(ConfigStore)  # a store of its own, and not the singleton
    scheme = ShippedConfigs.scheme()
    folders = [paths.conf_dir(), paths.recipes_dir()]
    loader.repository.sources = [
        *(ShippedConfigs("lsgd", f"{scheme}://{folder}") for folder in folders),
        schema,
    ]
    return loader


@contextmanager
def _composing() -> Iterator[None]:
    """Hold the lock of compositions, and have Hydra behave as its version 1.3 meanwhile.

    The program around may have asked Hydra for the behavior of another version.
    """
    with _COMPOSING:
        versions = version.VersionBase.instance()
        before = versions.version_base
        version.setbase("1.3")
        try:
            yield
        finally:
            versions.version_base = before


_COMPOSING = RLock()
"""The lock under which a thread composes a recipe."""
_own_configs: dict[str, DictConfig] = {}
"""The configurations from users' own files of the composition at work, by their names in Hydra."""
_GLOBAL: dict[str, str | None] = {"package": "_global_"}
_HYDRA = "hydra/config"
"""The name of Hydra's own settings, which it adds to each composition."""
_NEEDED_PATHS = ("data.root", "data.index", "model.start")
"""The fields without whose files a recipe may be incomplete, and which a command line can give."""
_COMPLETE = "complete"
"""The primary configuration for a recipe with all of its fields: no group has a default."""


def load_recipe(overrides: Sequence[str], *, is_tuned: bool = False) -> Recipe:
    """Compose and check the recipe of overrides such as ["recipe=bs8k", "workers=128"].

    `target` is removed if the overrides change the published run in more than the seed. A recipe
    that `is_tuned` has hardware=auto unless the overrides choose another. Raises UsageError with
    one sentence that says what to write instead.
    """
    overrides = _canonical(overrides)
    own = own_recipe(overrides)
    try:
        composed = _compose(overrides)
        recipe = with_own_parts(recipe_from_mapping(composed), all_parts=True)
        if is_tuned and all(key_and_value(word)[0] != "hardware" for word in overrides):
            recipe = _with_default_hardware(recipe, composed)
    except UsageError as refusal:
        _refuse_epochs(refusal, overrides)
        raise (own.locate(refusal, overrides) if own else refusal) from None
    # A published target does not hold for what a user builds on that recipe.
    inherits = own and not own.sets("target")
    if recipe.target and (inherits or not _is_as_published(recipe, overrides)):
        recipe = replace(recipe, target=None)
    if recipe.target and not _states_runs(overrides, own):
        recipe = replace(recipe, target=replace(recipe.target, runs=None))
    return make_dry_run(recipe) if recipe.rehearse else recipe


def load_base(recipe: str) -> Recipe:
    """Compose the recipe of a name or file, which may lack what a run needs; raises UsageError.

    Its dataset may be named only by the command line of a run: it has one example of one class.
    """
    chosen = [format_override("recipe", recipe)]
    own = own_recipe(chosen)
    try:
        return _typed_recipe(_compose([*chosen, *(f"data.{key}=1" for key in INDEXED_FIELDS)]), ())
    except UsageError as refusal:
        raise (own.locate(refusal, chosen) if own else refusal) from None


def _states_runs(overrides: Sequence[str], own: OwnRecipe | None) -> bool:
    """Return whether `target.runs` belongs to the published value and standard deviation.

    A number of runs that a recipe in `defaults` gives is not that of a value stated above it.
    """
    stated = {"target.top1_error", "target.perplexity", "target.std"}
    said = {key_and_value(word)[0] for word in overrides}
    for keys in (said, *({*file.lines} for file in (own.files if own else []))):
        if "target.runs" in keys or stated & keys:
            return "target.runs" in keys
    return True


def _with_default_hardware(recipe: Recipe, given: Collection[Any]) -> Recipe:
    """Set the fields that hardware=auto times, and nobody has given, to auto.

    Unlike the preset's, these values do not take precedence over a recipe's. A short run, for which
    nothing would be timed, keeps the defaults, and so does an asynchronous strategy, of which a
    process that starts again cannot time steps together with the others.
    """
    if recipe.is_short or not recipe.strategy.is_synchronous:
        return recipe
    # The first two are timed in a network that is not compiled.
    names = TIMED[2:] if recipe.compile is True else TIMED
    unopened = {*given}
    if recipe.batch_schedule or recipe.image_sizes.points:
        # The micro-batch is timed before the run, and those of later epochs may not fit the memory.
        unopened.add("workers_per_pass")
    opened: dict[str, Any] = {name: AUTO for name in names if name not in unopened}
    return replace(recipe, **opened)


def _refuse_epochs(refusal: UsageError, overrides: Sequence[str]) -> None:
    """Raise UsageError with fitting overrides if only its number of epochs makes a recipe invalid.

    They are those that would make it valid, in proportion to the number of epochs.
    """
    numbers = [value for key, value in map(key_and_value, overrides) if key == "epochs"]
    rest = [word for word in overrides if key_and_value(word)[0] != "epochs"]
    is_number = bool(numbers) and re.fullmatch(r"[0-9]{1,18}", numbers[-1])
    recipe = _recipe_or_none(rest) if is_number else None
    if recipe is None:
        return
    others = scale_epochs(recipe, int(numbers[-1]))
    keys = {key_and_value(word)[0] for word in others}
    if _recipe_or_none([*(word for word in rest if key_and_value(word)[0] not in keys), *others]):
        why, _, _ = str(refusal).partition("; ")
        raise UsageError(f"{why}; in proportion write {' '.join(others)}") from None


def _recipe_or_none(overrides: Sequence[str]) -> Recipe | None:
    """Compose and check the recipe of these overrides; return None if they are invalid."""
    try:
        return recipe_from_mapping(_compose(overrides))
    except UsageError:
        return None


def _is_as_published(recipe: Recipe, overrides: Sequence[str]) -> bool:
    """Return whether a recipe with overrides is still the published run, apart from its seed.

    A `target` among the overrides is taken to belong to the changed run.
    """
    keys = {key_and_value(word)[0] for word in overrides}
    if keys <= {"recipe", "seed"} or any(key.startswith("target") for key in keys):
        return True
    chosen = [word for word in overrides if key_and_value(word)[0] == "recipe"]
    # A user's own file may be changed while this process runs.
    load = _published_recipe.__wrapped__ if own_recipe(chosen) else _published_recipe
    # It may also lack the files that it needs, or name those of another machine.
    places = [word for word in overrides if key_and_value(word)[0] in _NEEDED_PATHS]
    for kept in (chosen, [*chosen, *places]):
        with suppress(UsageError):
            published = load(*kept)
            return replace(recipe, seed=published.seed).fingerprint == published.fingerprint
    return False


@cache
def _published_recipe(*overrides: str) -> Recipe:
    """Compose the published recipe that an override such as recipe=bs8k chooses."""
    return recipe_from_mapping(_compose(overrides))


def load_data(option: str) -> Data:
    """Load the dataset description conf/data/OPTION.yaml; raises UsageError if it is invalid."""
    file = read_yaml(paths.conf_dir() / "data" / f"{option}.yaml")
    try:
        return make_typed(Data, file.get("data", {}))
    except FieldError as error:
        raise UsageError(f"{option}.yaml is not a dataset ({error})") from None


def recipe_from_mapping(values: Mapping[str, Any], *overrides: str) -> Recipe:
    """Build and check a recipe from a mapping of fields, changed by overrides; raises UsageError.

    An override such as inputs=dali or comm=torch changes only the loader or library of its group.
    """
    overrides = tuple(_expand_group_override(canonical(word)) for word in overrides)
    recipe = _typed_recipe(values, overrides)
    if recipe.data.skip_list:
        recipe = replace(recipe, data=without_skipped(recipe.data))
    if recipe.model.start and not recipe.model.start_sha256:
        recipe = replace(recipe, model=with_start_hash(recipe.model))
    recipe = with_own_parts(recipe, overrides)
    check_recipe(recipe)
    return recipe


def _typed_recipe(values: Mapping[str, Any], overrides: Sequence[str]) -> Recipe:
    """Build a recipe, unchecked, from a mapping of fields changed by overrides.

    Raises UsageError for a key that no recipe has, a value of a wrong type, and a missing one.
    """
    try:
        given = _resolve(merge(values, parse_overrides(overrides, text_keys())))
        return make_typed(Recipe, merge(given, nest(_as_text(given))))
    except MissingValueError as error:
        raise UsageError(missing_message(error.value)) from None
    except UnknownKeyError as error:
        below = error.value if isinstance(error.value, dict) else {}
        refuse_key(error.key, ".".join([error.key, *map(str, [*below][:1])]))
    except WrongTypeError as error:
        refuse_type(error.key, error.value)
    except (OmegaConfBaseException, OverrideError) as error:
        raise UsageError(f"{first_line(error)}; write the value itself") from None
    except YAMLError:
        raise UsageError(
            f"a value in {' '.join(overrides)} cannot be read; close its brackets and quotes"
        ) from None


def _resolve(values: dict[str, Any]) -> dict[str, Any]:
    """Replace references such as ${seed} by the values, or defaults, to which they refer.

    Raises OmegaConfBaseException for one that refers to nothing.
    """
    if "${" not in repr(values):
        return values
    plain = {
        key: value
        for key, entry in all_fields(Recipe)
        if not group_of(entry.type) and (value := default(entry)) is not MISSING
    }
    complete: Any = OmegaConf.create(merge(nest(plain) | {"target": None}, values))
    return OmegaConf.to_container(complete, resolve=True)  # type: ignore[return-value]


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of paths, and of a list of augmentation parts, as a recipe has it, by key."""
    texts = {key: select(values, key) for key in PATH_FIELDS}
    found = {key: paths.local_path(text) for key, text in texts.items() if isinstance(text, str)}
    parts = select(values, "data.augmentation")
    if isinstance(parts, list):
        found["data.augmentation"] = f"[{','.join(map(str, parts))}]"
    return found


def from_saved(values: Mapping[str, Any], *overrides: str) -> Recipe:
    """Build and check the recipe that a run of any lsgd version saved, changed by overrides.

    Fields that the saving version lacked get the value that means its behaviour. Settings of
    loaders and libraries that this version lacks are dropped: no result depends on them. Raises
    UsageError, also for fields and choices of a newer version.
    """
    _check_saved_values(dict(values))
    if select(values, "data.skip_list") is not None:
        raise UsageError(
            "a saved recipe lists its skipped images in data.skip, not in a file as with "
            "data.skip_list; remove data.skip_list there"
        )
    if select(values, "model.start") and not select(values, "model.start_sha256"):
        raise UsageError(
            "a saved recipe with model.start has the hash of that file in model.start_sha256; "
            "remove model.start there"
        )
    check_saved_parts(values)
    completed = merge(nest(as_before_values(Recipe)), values)
    # Earlier versions took an empty text, which is refused in an override, for none.
    empty = [key for key in ("data.root", "data.index") if select(values, key) == ""]
    completed = merge(completed, nest(dict.fromkeys(empty)))
    for group, kind in (("inputs", InputsSettings), ("comm", CommSettings)):
        if isinstance(settings := completed.get(group), dict):
            known = {entry.name for entry in fields(kind)}
            completed[group] = {key: settings[key] for key in settings if key in known}
    # These strategies save after epochs only, and earlier versions ignored the minutes. They
    # have no profiles either, which earlier versions allowed and whose runs could hang.
    if select(values, "strategy.name") == "hogwild" or select(values, "strategy.order") == "live":
        for key in ("checkpoint_minutes", "profile"):
            completed.pop(key, None)
    _check_choices(completed)
    return recipe_from_mapping(completed, *overrides)


def from_python(recipe: Recipe) -> Recipe:
    """Check a recipe whose fields a Python program may have replaced, and return it as saved.

    Paths become texts, and scalars and arrays of numpy numbers and lists. Raises UsageError for any
    other value that no recipe can have, since the checkpoints of a run with it are unreadable.
    """
    return recipe_from_mapping(_plain(asdict(recipe), ""))


def _plain(value: Any, key: str) -> Any:
    """Return a value of plain types for the field of this dotted key; raises UsageError."""
    if isinstance(value, PurePath):
        return str(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        above = f"{key}." if key else ""
        return {_plain(name, key): _plain(each, f"{above}{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, key) for each in value]
    if type(value) not in (NoneType, *get_args(Plain)):
        raise UsageError(
            f"{key}={value!r:.80} cannot be saved in a recipe; write a number, a text, true, "
            "false, None or a list of these"
        )
    return value


def _check_choices(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a value in a saved recipe that only a newer lsgd version knows.

    It comes before the check of keys, since such a choice has fields that are unknown here too.
    """
    workload = select(values, "data.workload")
    for key, entry in all_fields(Recipe):
        value = select(values, key)
        if value is None or "one_of" not in entry.metadata or not applies_to(entry, workload):
            continue
        try:
            entry.metadata["one_of"].enforce(key, value)
        except UsageError:
            raise UsageError(
                f"{key}={value} is unknown to this version of lsgd; resume with the version that "
                "wrote it, or a newer one"
            ) from None


def read_recipe(path: Path) -> Recipe:
    """Read the recipe from the config.yaml of a run folder of any version; raises UsageError."""
    # A link may point to any other file.
    return from_saved(_parse_yaml(_read_text(path, follow=False), path.name))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read an untrusted YAML file; raises UsageError if it is not a mapping or cannot be read."""
    return _parse_yaml(_read_text(path, follow=True), path.name)


def _read_text(path: Path, *, follow: bool) -> str:
    """Read an untrusted text file of a bounded size; raises UsageError."""
    try:
        return read_bounded(path, MAX_FILE_BYTES, follow=follow).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name} cannot be read ({first_line(error)})") from None


def _parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse an untrusted YAML file of this name, with aliases of its keys; raises UsageError."""
    try:
        check_events(text)
        values = yaml.load(text, _Loader)
    except (ValueError, YAMLError) as error:
        raise UsageError(f"{name} cannot be read ({first_line(error)})") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name} is not a mapping of keys to values")
    return {ALIASES.get(str(key), str(key)): value for key, value in values.items()}


def _check_saved_values(values: Any, *, depth: int = 0) -> int:
    """Count the values of a saved recipe; raises UsageError for an interpolation or too many.

    lsgd never writes an interpolation such as ${oc.env:HOME}. The limit also ends endless nesting.
    """
    match values:
        case dict() | list() if depth < MAX_DEPTH:
            each = values.items() if isinstance(values, dict) else enumerate(values)
            count = sum(
                1
                + _check_saved_values(key, depth=depth + 1)
                + _check_saved_values(value, depth=depth + 1)
                for key, value in each
            )
        case dict() | list():
            count = MAX_VALUES + 1
        case str() if "${" in values:
            raise UsageError(
                f"a saved recipe has {values!r} in it, which refers to another value and is not "
                "resolved; write the value itself"
            )
        case _:
            return 0
    if count > MAX_VALUES:
        raise UsageError(
            f"a saved recipe has more than {MAX_DEPTH} levels or {MAX_VALUES} values; give that "
            "of a run of lsgd"
        )
    return count


def to_yaml(recipe: Recipe) -> str:
    """Format a recipe as YAML, with derived values such as batch_size as comments."""
    try:
        lr = f"# lr: {recipe.lr(0):g} at step 0\n"
    except UsageError:  # by a schedule that is not lsgd's, which a run only read does not import
        lr = ""
    derived = (
        f"# batch_size: {recipe.batch_size}\n"
        f"# steps_per_epoch: {recipe.steps_per_epoch}\n"
        + "".join(
            f"# from epoch {stage.epoch}: batch_size {stage.batch_size}, {stage.steps_per_epoch} "
            "steps\n"
            for stage in recipe.stages[1:]
        )
        + f"{lr}# fingerprint: {recipe.fingerprint}\n"
    )
    values = asdict(recipe)
    for key, entry in all_fields(Recipe):
        if not applies_to(entry, recipe.data.workload):
            group, _, name = key.rpartition(".")
            del (values[group] if group else values)[name]
    text = yaml.dump(values, Dumper=get_omega_conf_dumper(), allow_unicode=True, sort_keys=False)
    return f"{derived}{text}"


def check_before_composition(overrides: Sequence[str]) -> None:
    """Check the overrides of a command line for errors that show early; raises UsageError."""
    _check_overrides(_canonical(overrides))


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raise UsageError for recipe overrides that Hydra would misread or explain badly."""
    for word in overrides:
        key, value = key_and_value(word)
        if key.replace("-", "_") == "batch_size":
            _refuse_batch_size(value, [other for other in overrides if other is not word])
    check_overrides(overrides)


def _add_own_configs(own: OwnRecipe, overrides: Sequence[str]) -> str:
    """Give Hydra the files of a user's own recipe; return the name of its primary configuration."""
    files = {file.path: file for file in own.files}
    names = {path: f"own_file_{number}" for number, path in enumerate(files)}
    is_complete = any(file.is_complete for file in files.values())
    groups = config_groups()
    # A choice on the command line replaces the whole group of a file with all fields.
    replaced = {key_and_value(word)[0] for word in overrides} & {*groups} if is_complete else ()
    for path, file in files.items():
        given = values_of_own_file(file, Recipe)
        if "defaults" in given:
            given["defaults"] = [
                names[base] if isinstance(each, str) and (base := base_file(file, each)) else each
                for each in given["defaults"]
            ]
        earlier = nest(as_before_values(Recipe)) if file.is_complete else {}
        values = {k: v for k, v in merge(earlier, given).items() if k not in replaced}
        _own_configs[f"recipe/{names[path]}"] = OmegaConf.create(values)
    if not is_complete:
        return "config"
    none = [{group: None} for group in groups if group != "hardware"]
    _own_configs[_COMPLETE] = OmegaConf.create({"defaults": [{"recipe": None}, *none, "_self_"]})
    return _COMPLETE


def values_of_own_file(file: OwnFile, kind: type) -> dict[str, Any]:
    """Return the values in a user's own file of a dataclass, with texts as written."""
    try:
        return file.with_texts(_parse_yaml(file.text, file.shown), kind)
    except UsageError as unread:  # another YAML reader is stricter, such as for tabs
        raise UsageError(f"{unread}; fix it") from None


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    _check_overrides(overrides)
    with _composing():
        return _compose_alone(overrides)


def _compose_alone(overrides: Sequence[str]) -> dict[str, Any]:
    composed: dict[Any, Any]
    try:
        primary, name = "config", ""
        if own := own_recipe(overrides):
            primary, name = _add_own_configs(own, overrides), "own_file_0"
        # By a plus sign Hydra adds a group that has no default.
        plus = "" if primary == _COMPLETE else "+"
        hydra_overrides = [
            f"{plus}recipe={name or value}" if key == "recipe" else word
            for word, (key, value) in zip(overrides, map(key_and_value, overrides), strict=True)
        ]
        loaded = _config_loader().load_configuration(
            primary, _ordered_overrides(hydra_overrides), RunMode.RUN, from_shell=False
        )
        composed = OmegaConf.to_container(loaded)  # type: ignore[assignment]
        del composed["hydra"]
        if isinstance(declared := composed.get("deviations"), dict):
            # null removes a deviation that a recipe in `defaults` declares.
            composed["deviations"] = {k: why for k, why in declared.items() if why is not None}
        _fill_folder_counts(composed.get("data"))
        return composed
    except (YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.name}, line {mark.line + 1}" if mark else " ".join(overrides)
        raise UsageError(f"{where}: {first_line(error)}; fix that file") from None
    except OverrideParseException as error:
        refuse_override(str(error.override).lstrip("+"))
    except HydraException as error:
        _refuse_composition(error, overrides)
    except OmegaConfBaseException as error:
        raise UsageError(f"{first_line(error)}; write the value itself") from None
    finally:
        _own_configs.clear()


def _fill_folder_counts(data: Any) -> None:
    """Fill in the unset dataset sizes of data=folder from the index of the image folder.

    They become part of the recipe and so of a run's config.yaml: a resumed or evaluated run keeps
    its own.
    """
    if select(data, "name") != "folder":
        return
    missing = [key for key in INDEXED_FIELDS if key not in data]
    root, index = data.get("root"), data.get("index")
    if missing and not root:
        raise UsageError(
            "data=folder needs the folder of images; write data.root=FOLDER, once `python "
            "-m lsgd.prepare folder FOLDER` has indexed it"
        )
    if missing and isinstance(root, str) and isinstance(index, str | None):
        counted = count_images(paths.parse_path(root), paths.parse_path(index) if index else None)
        data.update({key: counted[key] for key in missing})


def parse_overrides(overrides: Sequence[str], text_keys: Collection[str]) -> dict[str, Any]:
    """Parse `key=value` overrides into nested dictionaries; those in `text_keys` stay texts.

    Raises YAMLError for a value that cannot be parsed, and OverrideError for other mistakes.
    """
    parsed = OmegaConf.create()
    try:
        for word in overrides:
            key, equals, value = word.partition("=")
            refuse_long_number(key, value)
            if equals and key in text_keys:
                OmegaConf.update(parsed, key, parse_text(key, value))
            else:
                parsed.merge_with_dotlist([word])
        return OmegaConf.to_container(parsed)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise OverrideError(first_line(error)) from None


def _chosen_group(override: str) -> str | None:
    """Return the group of which an override such as model=NAME chooses one; None for any other."""
    key, value = key_and_value(override)
    is_choice = "=" in override and not override.startswith("~") and not value.startswith("{")
    return key if is_choice and key in config_groups() else None


def _ordered_overrides(overrides: Sequence[str]) -> list[str]:
    """Translate a command line's overrides into Hydra's, with the hardware group after the recipe.

    The group `hardware` comes last in Hydra's defaults list: its values take precedence over those
    of a recipe, which were fast where it was tried, and single overrides over both. The last choice
    of a group replaces earlier ones, of which one such as model=timm/NAME also sets a field.
    """
    hardware = [f"+{word}" for word in overrides if key_and_value(word)[0] == "hardware"]
    # By place, since a command line may repeat a choice behind another one of its group.
    chosen = {place: key for place, word in enumerate(overrides) if (key := _chosen_group(word))}
    last = {key: place for place, key in chosen.items()}
    rest = [
        word
        for place, word in enumerate(overrides)
        if f"+{word}" not in hardware and (place not in chosen or last[chosen[place]] == place)
    ]
    return [*(part for word in rest for part in _to_hydra_overrides(word)), *hardware]


def _to_hydra_overrides(override: str) -> list[str]:
    """Translate one command-line override of a recipe into overrides in Hydra's grammar.

    Every value is forced into the configuration, whether a file has set the field or not, and a
    field is set before it is deleted. Which keys there are is checked by the schema of Recipe. A
    text field gets quotes, and a network of a library becomes model=library with its name, as a
    part of the user's own does.
    """
    key, value = key_and_value(override)
    if part := base_of_part(key, value):
        return [f"{key}={part[0]}", f"++{part[1]}={quote(value)}"]
    if override.startswith("~"):
        return [f"++{key}=0", override] if key in field_keys() else [override]
    if key == "recipe" or "@" in key or (key in config_groups() and not value.startswith("{")):
        return [override]  # Hydra has a package behind @, which no group of lsgd's has
    if key in text_keys() and "=" in override:
        text = parse_text(key, value)
        value = "null" if text is None else quote(text)
    return [f"++{key}={value}" if "=" in override else override]


def _expand_group_override(override: str) -> str:
    """Expand a group override to its name field, such as comm=torch to comm.library=torch."""
    named = {"inputs": "inputs.loader", "comm": "comm.library"}
    named |= {group: f"{group}.name" for group in ("data", "model", "optim", "strategy")}
    key, value = key_and_value(override)
    named |= {"schedule": "schedule.decay"} if is_import_path(value) else {}
    return f"{key if value.startswith('{') else named.get(key, key)}={value}"


def _canonical(words: Sequence[str]) -> list[str]:
    """Return overrides with the keys of saved recipes, and without plus signs before groups."""
    groups = config_groups()
    return [
        word.lstrip("+") if key_and_value(word)[0] in groups else canonical(word) for word in words
    ]


def _refuse_composition(error: HydraException, overrides: Sequence[str]) -> NoReturn:
    text = str(error)
    if unknown := re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text):
        key = unknown.group(1) or unknown.group(2)
        refuse_key(key, key)
    if unset := re.search(r"Could not delete from config. '([^']+)' does not exist", text):
        refuse_deletion(unset.group(1))
    if several := re.search(r"Ambiguous value for argument '(.+)'", text):
        _refuse_several(several.group(1).lstrip("+"), overrides)
    if sweep := re.search(r"Sweep parameters '(.+)' requires --multirun", text):
        _refuse_several(sweep.group(1).lstrip("+"), overrides)
    if other := re.search(r"Error merging override (.+)", text):
        key, value = key_and_value(other.group(1))
        if key in {key for key, _ in all_fields(Recipe)}:
            refuse_type(key, value)
    raise UsageError(f"{' '.join(overrides)}: {' '.join(text.split())}") from None


def _refuse_several(word: str, overrides: Sequence[str]) -> NoReturn:
    """Raise UsageError for an override with several values, with the search that tries each."""
    key, value = key_and_value(word)
    refusal = f"'{word}' has several values and a run has one; write one"
    types = {name: entry.type for name, entry in all_fields(Recipe)}
    if get_origin(types.get(key)) is list:
        raise UsageError(f"{refusal}, or a list in brackets, {key}=[{value}]") from None
    if key == "recipe":
        raise UsageError(f"{refusal}, or train a study, which has several recipes") from None
    if key == "seed":
        raise UsageError(f"{refusal}, and start a run for each") from None
    rest = [
        each
        for each in overrides
        if key_and_value(each)[0] not in (key, "run_dir", "rehearse", "name")
    ]
    is_sweep = re.fullmatch(r"\w+\(.*\)", value)  # such as range(1,3), which a search does not read
    values = "VALUE,VALUE" if is_sweep else value
    command = shlex.join(["python", "-m", "lsgd.search", *rest, f"{key}=[{values}]"])
    raise UsageError(f"{refusal}, or search for the best by {command}") from None


def _refuse_batch_size(value: str, rest: Sequence[str]) -> NoReturn:
    try:
        recipe = recipe_from_mapping(_compose(rest))
        n, wanted = recipe.worker_batch, int(value)
    except (UsageError, ValueError):
        raise UsageError(
            "batch_size is workers x worker_batch and not set itself; write workers=…"
        ) from None
    if wanted < n or wanted % n:
        raise UsageError(
            f"batch_size is workers x worker_batch, and {wanted} is not a multiple of "
            f"worker_batch={n}; write workers={max(1, round(wanted / n))}"
            + _exact_batch_hint(wanted, n, rest)
        )
    if recipe.strategy.is_asynchronous:
        batches = recipe.batch_size // n
        raise UsageError(
            f"batch_size is that of an update, {batches} x worker_batch={n}, and not set itself; "
            "write worker_batch=…"
        )
    raise UsageError(
        f"batch_size is workers x worker_batch = {recipe.workers} x {n}; "
        f"write workers={wanted // n}"
    )


def _exact_batch_hint(batch_size: int, n: int, rest: Sequence[str]) -> str:
    """Return a hint with workers and worker_batch of exactly this batch size; empty if none fit."""
    divisors = [d for d in range(max(2, n // 2), 2 * n + 1) if batch_size % d == 0]
    if divisors:
        other = min(divisors, key=lambda d: abs(d - n))
        overrides = [f"workers={batch_size // other}", f"worker_batch={other}"]
        if _recipe_or_none([*rest, *overrides]):
            return f", or for {batch_size} {' '.join(overrides)}"
    return ""
