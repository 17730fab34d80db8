"""Makes a checked Recipe of conf/, recipes/ and `key=value` words; only this file knows Hydra."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError
from yaml import YAMLError

from lsgd import paths
from lsgd.errors import Refused
from lsgd.job.command import Parser, option_and_value
from lsgd.nearest import did_you_mean, written_here
from lsgd.recipe import LIBRARIES, CommSettings, Data, InputsSettings, Recipe
from lsgd.recipe.checks import check
from lsgd.recipe.fields import all_fields, concerns, group_of, is_within, values_before
from lsgd.recipe.folder import COUNTED, counts
from lsgd.recipe.points import PublishedPoints, check_points
from lsgd.recipe.proportion import in_proportion
from lsgd.recipe.rehearsal import rehearsal
from lsgd.recipe.search import SEARCH_FIELDS, Search, check_search
from lsgd.recipe.study import Study, check_study

T = TypeVar("T")

EPILOG = """\
{recipes}

groups, one file each in conf/:
{groups}

any field of the recipe is a word of its own:
  worker_batch=64 epochs=30 seed=1      what is computed
  comm=torch workers_per_pass=8 run_dir=runs/a
                                        where and how fast; the trajectory stays the same
  data.root=/data/imagenet              where the images are; lsgd.prepare makes them ready
  inputs=synthetic                      made-up images, for a machine without data
  model=timm/resnet18                   any network of torchvision or timm for images
  rehearse=true                         the same run in miniature, in seconds
  --cfg                                 print the run's configuration and train nothing
"""


OPTIONS = ("--help", "--cfg")
"""Those that each command line of a recipe has."""
NO_RECIPE = "no recipe is given; write for example +recipe=digits, or --help to see them all"


class RecipesRoot(SearchPathPlugin):
    """A plugin that makes recipes/ a root of Hydra's search path, beside conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append recipes/; Hydra calls this whenever it composes."""
        search_path.append("lsgd", f"file://{paths.recipes_dir()}")


Plugins.instance().register(RecipesRoot)
# Without the settings of Hydra's own logs and launchers, which would be half of what is composed.
ConfigStore.instance().store("config", HydraConf(defaults=[]), group="hydra")


class RecipeParser(Parser):
    """A tool's words: those of a recipe, and the options that the tool adds with add_argument."""

    def __init__(self, *, program: str, about: str, own: Sequence[str] = ()) -> None:
        """`own` are the keys that the tool takes off the line before it is read."""
        super().__init__(
            program,
            about,
            keys=lambda: ["recipe", *own, *field_keys()],
            usage=f"python -m {program} +recipe=NAME [key=value ...]",
            epilog=EPILOG.format(recipes=_recipe_list(), groups=_group_list()),
        )
        self.add_argument("words", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
        self.add_argument("--cfg", action="store_true", help=argparse.SUPPRESS)

    def read(self, argv: Sequence[str]) -> tuple[Recipe, argparse.Namespace]:
        """The recipe that is asked for, and the options of the tool.

        Raises Refused with one sentence for whatever is wrong; `--help` and `--cfg` print and
        raise SystemExit(0).
        """
        # Intermixed: options may stand among the words.
        arguments = self.parse_intermixed_args(argv)
        recipe = load_recipe(arguments.words)
        if arguments.cfg:
            print(to_yaml(recipe), end="")
            raise SystemExit(0)
        return recipe, arguments

    def refuse(self, word: str, line: Sequence[str], *remedy: str, **more: Any) -> NoReturn:
        """Refuse an option as the word that it would be here, if that says more."""
        name, value = option_and_value(word, line)
        if (key := name.lstrip("-").replace("-", "_")) in ("batch_size", "recipe"):
            words = [each for each in line if "=" in each and not each.startswith("-")]
            _check_words([f"{key}={value}", *words])
        super().refuse(word, line, *remedy, **more)


def check_line(argv: Sequence[str]) -> None:
    """Refuse a command line that `load` would, by its words alone: nothing is composed."""
    parser = RecipeParser(program="lsgd.train", about="")
    _check_words(parser.parse_intermixed_args(argv).words)


def load(argv: Sequence[str], *, program: str, about: str) -> Recipe:
    """The recipe that a command line without options of its own asks for.

    Raises Refused or SystemExit(0), as RecipeParser.read does.
    """
    recipe, _ = RecipeParser(program=program, about=about).read(argv)
    return recipe


def load_recipe(words: Sequence[str]) -> Recipe:
    """The checked recipe that these words compose, such as ["+recipe=bs8k", "workers=128"].

    Its fields are those of the dataclass; `name`, `fingerprint`, `steps_per_epoch`, `total_steps`
    and `lr(step)` of it stay from version to version. `target` is left out where words make another
    run than the one that was published, whatever its seed. Raises Refused, with one sentence that
    says what to write instead.
    """
    try:
        recipe = from_mapping(_compose(words))
    except Refused as refusal:
        _refuse_epochs(refusal, words)
        raise
    if recipe.target and not _is_as_published(recipe, words):
        recipe = replace(recipe, target=None)
    return rehearsal(recipe) if recipe.rehearse else recipe


def _refuse_epochs(refusal: Refused, words: Sequence[str]) -> None:
    """Refuse with the words that would do, if a number of epochs is refused for want of others."""
    numbers = [value for key, value in map(_split, words) if key == "epochs"]
    rest = [word for word in words if _split(word)[0] != "epochs"]
    recipe = _accepted(rest) if numbers and numbers[-1].isdecimal() else None
    if recipe is None:
        return
    others = in_proportion(recipe, int(numbers[-1]))
    keys = {_split(word)[0] for word in others}
    if _accepted([*(word for word in rest if _split(word)[0] not in keys), *others]):
        why, _, _ = str(refusal).partition("; ")
        raise Refused(f"{why}; in proportion write {' '.join(others)}") from None


def _accepted(words: Sequence[str]) -> Recipe | None:
    """The recipe of these words, or None if they are refused."""
    try:
        return from_mapping(_compose(words))
    except Refused:
        return None


def _is_as_published(recipe: Recipe, words: Sequence[str]) -> bool:
    """Whether the words leave the run as the file of its recipe has it, but for the seed.

    A published number that the words give themselves is taken to be of what they say.
    """
    keys = {_split(word)[0] for word in words}
    if keys <= {"recipe", "seed"} or any(key.startswith("target") for key in keys):
        return True
    published = _published(*(word for word in words if _split(word)[0] == "recipe"))
    return replace(recipe, seed=published.seed).fingerprint == published.fingerprint


@cache
def _published(*words: str) -> Recipe:
    """The recipe as its file has it, of the word that chooses it alone."""
    return from_mapping(_compose(words))


def load_data(option: str) -> Data:
    """A dataset as its file in conf/data has it."""
    file = _read_yaml(paths.conf_dir() / "data" / f"{option}.yaml")
    schema: DictConfig = OmegaConf.structured(_blank(Data))
    OmegaConf.set_readonly(schema, None)
    data = OmegaConf.to_object(OmegaConf.merge(schema, file.data))
    assert isinstance(data, Data)
    return data


def from_mapping(values: Mapping[str, Any] | DictConfig, *words: str) -> Recipe:
    """The checked recipe with these fields, changed by `key=value` words; raises Refused.

    A word such as inputs=dali or comm=torch chooses the loader or library and leaves the rest.
    """
    words = tuple(map(_by_its_field, words))
    try:
        plain = values if isinstance(values, DictConfig) else OmegaConf.create(dict(values))
        given = plain, OmegaConf.from_dotlist(list(words))
        merged = OmegaConf.merge(_schema(Recipe), *given)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise Refused(_missing(missing))
        recipe = OmegaConf.to_object(merged)
    except ConfigKeyError as error:
        _refuse_key(str(error.full_key))
    except ValidationError as error:
        if not error.full_key:
            _refuse_type(*next(_values_of_groups(given)))
        _refuse_type(str(error.full_key), error.value)
    except OmegaConfBaseException as error:
        raise Refused(f"{_first_line(error)}; write the value itself") from None
    except YAMLError:
        raise Refused(
            f"a value in {' '.join(words)} cannot be read; close its brackets and quotes"
        ) from None
    assert isinstance(recipe, Recipe)
    for key, entry in all_fields(Recipe):
        # OmegaConf looks at the elements of a list, but not at lists in it.
        if entry.type in (list[int], list[float], list[str]):
            elements = OmegaConf.select(merged, key)
            if not all(isinstance(element, get_args(entry.type)) for element in elements):
                _refuse_type(key, elements)
        # And takes any number for true.
        for source in given if entry.type is bool else ():
            value = OmegaConf.select(source, key)
            if isinstance(value, int) and value not in (0, 1):
                _refuse_type(key, value)
    for source in given:  # and any number for a text
        for rule, reason in (OmegaConf.select(source, "deviations") or {}).items():
            if not isinstance(reason, str):
                _refuse_type(f"deviations.{rule}", reason)
    if recipe.data.skip_list:
        recipe = replace(recipe, data=_without_skipped(recipe.data))
    check(recipe)
    return recipe


def from_saved(values: Mapping[str, Any] | DictConfig, *words: str) -> Recipe:
    """The checked recipe that a run of any version was saved with, changed by `key=value` words.

    Fields that the version did not have mean "as before". Settings of loaders and libraries that
    this one does not have are left out: they come and go with versions, and no result depends on
    them. Raises Refused, for what only a newer version knows too.
    """
    before = OmegaConf.create()
    for key, value in values_before(Recipe).items():
        OmegaConf.update(before, key, value)
    try:
        completed = OmegaConf.merge(before, values)
        assert isinstance(completed, DictConfig)
        for group, kind in (("inputs", InputsSettings), ("comm", CommSettings)):
            known = {entry.name for entry in fields(kind)}
            settings = completed.get(group)
            if isinstance(settings, DictConfig):
                completed[group] = {key: settings[key] for key in settings if key in known}
        _check_choices(completed)
    except OmegaConfBaseException as error:
        raise Refused(f"{_first_line(error)}; give the configuration of a run of lsgd") from None
    return from_mapping(completed, *words)


def _check_choices(values: DictConfig) -> None:
    """Raise Refused for a choice that this version does not know, before a field that comes with
    it is unknown too."""
    workload = OmegaConf.select(values, "data.workload")
    for key, entry in all_fields(Recipe):
        value = OmegaConf.select(values, key)
        if value is None or "one_of" not in entry.metadata or not concerns(entry, workload):
            continue
        try:
            entry.metadata["one_of"].refuse(key, value)
        except Refused:
            raise Refused(
                f"{key}={value} is unknown to this version of lsgd; go on with the version that "
                "wrote it, or a newer one"
            ) from None


def read_recipe(path: Path) -> Recipe:
    """The recipe in the config.yaml of a run folder of any version; raises Refused."""
    return from_saved(_read_yaml(path))


def load_study(name: str) -> Study:
    """The checked study `recipes/study/NAME.yaml`; raises Refused."""
    if name not in studies():
        raise Refused(f"+study={name} does not exist; {did_you_mean(name, studies())}")
    study = _load_definition(Study, "study", name, hint="see the studies that are there")
    check_study(study, recipes())
    return study


def load_search(name: str, *words: str) -> Search:
    """The checked search `recipes/search/NAME.yaml`, changed by words such as `trials=60`.

    Raises Refused. Whether the recipe takes the points of its space is another question.
    """
    if name not in searches():
        raise Refused(f"+search={name} does not exist; {did_you_mean(name, searches())}")
    page = paths.shown(paths.recipes_dir() / "README.md")
    hint = f"a search has {', '.join(SEARCH_FIELDS)}, as {page} says"
    try:
        search = _load_definition(Search, "search", name, *words, hint=hint)
    except YAMLError:
        raise Refused(f"a value in {' '.join(words)} cannot be read; close its brackets") from None
    check_search(search, recipes())
    return search


def load_points(name: str) -> PublishedPoints:
    """The checked convergence points `recipes/points/NAME.yaml`; raises Refused."""
    points = _load_definition(PublishedPoints, "points", name, hint="see the points that are there")
    check_points(points)
    return points


def _load_definition(kind: type[T], group: str, name: str, *words: str, hint: str) -> T:
    """`recipes/GROUP/NAME.yaml`, changed by words; raises Refused, and YAMLError for the words."""
    values = _read_yaml(paths.recipes_dir() / group / f"{name}.yaml")
    schema = OmegaConf.structured(kind)
    OmegaConf.set_readonly(schema, None)
    try:
        given = OmegaConf.from_dotlist(list(words))
        made = OmegaConf.to_object(OmegaConf.merge(schema, {"name": name}, values, given))
    except OmegaConfBaseException as error:
        raise Refused(f"{group} {name}: {_first_line(error)}; {hint}") from None
    assert isinstance(made, kind)
    return made


def all_points() -> list[PublishedPoints]:
    """All shipped convergence points."""
    folder = paths.recipes_dir() / "points"
    return [load_points(path.stem) for path in sorted(folder.glob("*.yaml"))]


def searches() -> list[str]:
    """Names of all shipped searches."""
    return sorted(path.stem for path in (paths.recipes_dir() / "search").glob("*.yaml"))


def studies() -> list[str]:
    """Names of all shipped studies."""
    return sorted(path.stem for path in (paths.recipes_dir() / "study").glob("*.yaml"))


def _read_yaml(path: Path) -> DictConfig:
    try:
        values = OmegaConf.load(path)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise Refused(f"{path.name} cannot be read ({_first_line(error)})") from None
    if not isinstance(values, DictConfig):
        raise Refused(f"{path.name} is no mapping of keys to values")
    return values


def _without_skipped(data: Data) -> Data:
    """The dataset without the images that its skip list names, one path per line, `#` comments."""
    path = Path(data.skip_list or "")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"data.skip_list={path} cannot be read ({error}); give the file that `python -m "
            "lsgd.prepare imagenet ROOT --check` has written, or leave it out"
        ) from None
    listed = {line.partition("#")[0].strip() for line in lines} - {""}
    skip = sorted(listed.difference(data.skip))
    train = sum(image.startswith("train/") for image in skip)
    # What is left out is recorded by name; the file itself is not read again.
    return replace(
        data,
        skip_list=None,
        skip=sorted({*data.skip, *skip}),
        train_examples=data.train_examples - train,
        val_examples=data.val_examples - (len(skip) - train),
    )


def to_yaml(recipe: Recipe) -> str:
    """The recipe's fields, and what follows from them as comments."""
    derived = (
        f"# batch_size: {recipe.batch_size}\n"
        f"# steps_per_epoch: {recipe.steps_per_epoch}\n"
        + "".join(
            f"# from epoch {stage.epoch}: batch_size {stage.batch_size}, {stage.steps} steps\n"
            for stage in recipe.stages[1:]
        )
        + f"# lr: {recipe.lr(0):g} at step 0\n"
        f"# fingerprint: {recipe.fingerprint}\n"
    )
    values: Any = OmegaConf.to_container(OmegaConf.structured(recipe))
    for key, entry in all_fields(Recipe):
        if not concerns(entry, recipe.data.workload):
            group, _, name = key.rpartition(".")
            del (values[group] if group else values)[name]
    return derived + OmegaConf.to_yaml(OmegaConf.create(values))


def recipes() -> list[str]:
    """Names of all shipped recipes, bs512 before bs1k."""

    def with_size(name: str) -> str:
        return re.sub(r"bs(\d+)(k?)", lambda m: f"{int(m[1]) * (1024 if m[2] else 1):06}", name)

    return sorted(paths.recipe_names(), key=with_size)


@cache
def _schema(kind: type[Recipe]) -> DictConfig:
    """The types and defaults of a recipe's fields, to be merged with values and not changed."""
    schema: DictConfig = OmegaConf.structured(_blank(kind))
    # The dataclasses are frozen, which OmegaConf takes for read-only, at every level of its own.
    OmegaConf.set_readonly(schema, None)
    for entry in fields(kind):
        if group_of(entry.type):
            OmegaConf.set_readonly(schema[entry.name], None)
            if entry.default_factory is MISSING:
                schema[entry.name] = "???" if entry.default is MISSING else entry.default
    return schema


def _blank(kind: Any) -> Any:
    """The dataclass with all its groups, where what has no default is said to be missing."""
    values: dict[str, Any] = {}
    for entry in fields(kind):
        if group := group_of(entry.type):
            values[entry.name] = _blank(group)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            values[entry.name] = "???"
    return kind(**values)


def _defaults() -> dict[str, Any]:
    """The values that conf/config.yaml begins with, untyped: from_mapping refuses more clearly."""
    none = {entry.name: None for entry in fields(Recipe) if entry.default is None}
    values = asdict(_blank(Recipe)) | none
    del values["replaced"]  # which only a rehearsal sets
    return values


def _compose(words: Sequence[str]) -> DictConfig:
    _check_words(words)
    ConfigStore.instance().store("fields", _defaults())
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(paths.conf_dir()), version_base="1.3", job_name="lsgd"):
            composed: DictConfig = compose("config", overrides=_in_order(words))
            if isinstance(composed.deviations, DictConfig):
                # With null a recipe takes back what the one in its `defaults` declares.
                declared = composed.deviations.items()
                composed.deviations = {rule: why for rule, why in declared if why is not None}
            _count_folder(composed.data)
            return composed
    except OverrideParseException as error:
        _refuse_word(str(error.override))
    except HydraException as error:
        _refuse_composition(error, words)
    except OmegaConfBaseException as error:
        raise Refused(f"{_first_line(error)}; write the value itself") from None
    finally:
        GlobalHydra.instance().clear()


def _count_folder(data: Any) -> None:
    """Give data=folder the numbers that its words do not give, from the index of the folder.

    What is composed has them from here on, and so has the config.yaml of a run: a run that goes on
    or is evaluated keeps its own.
    """
    if not isinstance(data, DictConfig) or OmegaConf.select(data, "name") != "folder":
        return
    missing = [key for key in COUNTED if OmegaConf.is_missing(data, key)]
    if missing and data.root is None:
        raise Refused(
            "data=folder does not say which folder of images; write data.root=FOLDER, once `python "
            "-m lsgd.prepare folder FOLDER` has indexed it"
        )
    if missing and isinstance(data.root, str) and isinstance(data.index, str | None):
        counted = counts(Path(data.root), Path(data.index) if data.index else None)
        data.update({key: counted[key] for key in missing})


def _split(word: str) -> tuple[str, str]:
    """Key and value of an override, without the plus sign that adds or the tilde that removes."""
    key, _, value = word.lstrip("+~").partition("=")
    return key, value


def _in_order(words: Sequence[str]) -> list[str]:
    """The overrides of these words. What the hardware is comes last: its words go before those of a
    recipe, which says what was fast where it was tried, and behind what is given word by word."""
    hardware = [f"+{word}" for word in words if _split(word)[0] == "hardware"]
    rest = [word for word in words if f"+{word}" not in hardware]
    return [*(part for word in rest for part in _as_hydra_has_it(word)), *hardware]


def _as_hydra_has_it(word: str) -> list[str]:
    """The word, with plus signs where it adds the first key to an empty group; a library's network
    is a file of conf/model/ and its name."""
    key, value = _split(word)
    if key == "model" and is_within(value, LIBRARIES):
        return ["model=library", f"model.name={value}"]
    opens = word.startswith(("metric.epochs_to", "metric.steps_to", "model.options."))
    return [f"++{word}" if opens else word]


def _by_its_field(word: str) -> str:
    """The word, with the field that has the name of a group's choice if it has the group alone."""
    named = {"inputs": "inputs.loader", "comm": "comm.library"}
    named |= {group: f"{group}.name" for group in ("data", "model", "optim", "strategy")}
    key, value = _split(word)
    return f"{key if value.startswith('{') else named.get(key, key)}={value}"


def _check_words(words: Sequence[str]) -> None:
    """Refuse what Hydra would explain worse, or take for something else."""
    chosen = [word for word in words if _split(word)[0] == "recipe"]
    if len(chosen) > 1:
        raise Refused(f"{' and '.join(chosen)} are {len(chosen)} recipes; write one")
    for word in words:
        key, value = _split(word)
        if not key or ("=" not in word and not word.startswith("~")):
            _refuse_word(word)
        if key.replace("-", "_") == "batch_size":
            _refuse_batch_size(value, [other for other in words if other is not word])
        if key in ("lr", "optim.lr", "schedule.lr"):
            raise Refused(
                f"{key} is not set itself: the lr of a step is schedule.reference_lr, scaled from "
                "schedule.reference_batch to the minibatch; write schedule.reference_lr=…"
            )
        if key == "recipe":
            _check_choice(word, value, recipes())
            if not word.startswith("+"):
                raise Refused(
                    f"'{word}' needs a plus sign, since a recipe is added to conf/: write +{word}"
                )
        if key in _groups() and word == f"~{key}":
            raise Refused(_missing([key]))
        if key in _groups() and "=" in word:
            if key != "model" or not is_within(value, LIBRARIES):
                _check_choice(word, value, _options(key))
            if word.startswith("+"):
                raise Refused(f"'{word}' has a plus sign too many; write {key}={value}")
        if re.match(r"hydra\b", key):
            raise Refused(
                f"'{word}' would change nothing, since Hydra only composes the recipe; write "
                "run_dir=PATH for the folder of the run"
            )


def _check_choice(word: str, value: str, known: Sequence[str]) -> None:
    """Refuse a file that is not there; a mapping and several values are left to Hydra."""
    if not value:
        raise Refused(
            NO_RECIPE if known == recipes() else f"'{word}' has no value; write {word}NAME"
        )
    mapping, several = value.startswith("{"), "," in value and not value.startswith("[")
    if value.strip("'\"") not in known and not mapping and not several:
        raise Refused(f"{word} does not exist; {did_you_mean(value, known)}")


def _refuse_word(word: str) -> NoReturn:
    key, value = _split(word)
    if "=" in word and re.fullmatch(r"[\w./-]+", key):
        raise Refused(
            f"the value in '{word}' cannot be read; close its brackets, or quote it twice: "
            f"'{key}=\"{value}\"'"
        ) from None
    how = f"write +recipe={word}" if word in recipes() else written_here(word, options=OPTIONS)
    how = how or f"write {'+recipe=NAME' if key == 'recipe' else 'for example epochs=30'}"
    raise Refused(f"'{word}' is not of the form key=value; {how}") from None


def _refuse_composition(error: HydraException, words: Sequence[str]) -> NoReturn:
    text = str(error)
    if unknown := re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text):
        _refuse_key(unknown.group(1) or unknown.group(2))
    if several := re.search(r"Ambiguous value for argument '(.+)'", text):
        raise Refused(
            f"'{several.group(1)}' has several values and a run has one; write one, or a list in "
            "brackets where the key takes a list"
        ) from None
    raise Refused(f"{' '.join(words)}: {_first_line(error)}") from None


def _refuse_key(key: str) -> NoReturn:
    known = _keys()
    if key == "deviations":
        raise Refused(
            "deviations are given one by one, each with its reason; write +deviations.RULE=REASON"
        ) from None
    if key in known or key.startswith("deviations."):
        raise Refused(f"'{key}' is not in the recipe yet; write +{key}=VALUE") from None
    if key in _groups():
        raise Refused(
            f"what '{key}' is given is neither one of its choices nor keys that it has; write "
            f"{key}=NAME for one of `--help`, or {key}.KEY=VALUE"
        ) from None
    hint = did_you_mean(key, [*known, *_groups(), "+recipe"])
    raise Refused(f"there is no key '{key}'; {hint}") from None


_KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "=30"),
    int | str: ("a whole number or auto", "=8"),
    float: ("a number", "=0.5"),
    bool: ("true or false", "=true"),
    list[int]: ("a list of whole numbers", "=[1,2,3]"),
    list[float]: ("a list of numbers", "=[1,2,3]"),
    list[str]: ("a list of texts", "=[a,b]"),
    dict[str, str]: ("a group of keys", ".RULE=REASON"),
    dict[str, float]: ("a rate and its target", "={top1_error:24.1}"),
    dict[str, Any]: ("a group of keys", ".KEY=VALUE"),
}
"""The kind of value of a field, in words, and an example of how to write one."""


def _values_of_groups(sources: Sequence[DictConfig]) -> Iterator[tuple[str, Any]]:
    """The groups of a recipe that these give one value, and that value."""
    groups = [entry.name for entry in fields(Recipe) if group_of(entry.type)]
    for source in sources:
        for name in groups:
            if not isinstance(value := source.get(name), DictConfig | None):
                yield name, value


def _refuse_type(key: str, value: Any) -> NoReturn:
    if key.startswith("deviations."):
        raise Refused(f"{key}={value} is no reason; write it as a text, +{key}='…'") from None
    field, element, _ = key.partition("[")
    types = {key: entry.type for key, entry in all_fields(Recipe)}
    field = field if field in types else field.rpartition(".")[0]  # of a rate of a mapping
    kind: Any = types[field]
    kind = {int | None: int, float | None: float}.get(kind, kind)
    if group := group_of(kind):
        what, example = "a group of keys", f".{fields(group)[0].name}=VALUE"
    else:
        what, example = _KINDS.get(kind, ("a text", "=TEXT"))
    shown = json.dumps(value) if value is None or isinstance(value, bool) else value
    wrong = f"{field} has {shown} in it and" if element else f"{field}={shown}"
    raise Refused(f"{wrong} is not {what}; write for example {field}{example}") from None


def _refuse_batch_size(value: str, rest: Sequence[str]) -> NoReturn:
    try:
        recipe = from_mapping(_compose(rest))
        n, wanted = recipe.worker_batch, int(value)
    except (Refused, ValueError):
        raise Refused(
            "batch_size is workers x worker_batch and not set itself; write workers=…"
        ) from None
    if wanted < n or wanted % n:
        raise Refused(
            f"batch_size is workers x worker_batch, and {wanted} is not a multiple of "
            f"worker_batch={n}; write workers={max(1, round(wanted / n))}"
            + _exactly(wanted, n, rest)
        )
    if recipe.strategy.asynchronous:
        batches = recipe.batch_size // n
        raise Refused(
            f"batch_size is that of an update, {batches} x worker_batch={n}, and not set itself; "
            "write worker_batch=…"
        )
    raise Refused(
        f"batch_size is workers x worker_batch = {recipe.workers} x {n}; "
        f"write workers={wanted // n}"
    )


def _exactly(batch_size: int, n: int, rest: Sequence[str]) -> str:
    """The words that make this batch with other, but not far other, workers; none if none do."""
    divisors = [d for d in range(max(2, n // 2), 2 * n + 1) if batch_size % d == 0]
    if divisors:
        other = min(divisors, key=lambda d: abs(d - n))
        words = [f"workers={batch_size // other}", f"worker_batch={other}"]
        if _accepted([*rest, *words]):
            return f", or for {batch_size} {' '.join(words)}"
    return ""


def _missing(keys: Sequence[str]) -> str:
    if "name" in keys:
        return NO_RECIPE
    # A group without its name has not been chosen, and lacks more than that.
    keys = [key.removesuffix(".name") for key in keys if key.endswith(".name")] or keys
    return f"{', '.join(keys)} has no value; write {keys[0]}=…"


def field_keys() -> list[str]:
    """All that a key=value word may give: the fields of a recipe, and its groups."""
    return [*_keys(), *_groups()]


def _keys() -> list[str]:
    return [key for key, entry in all_fields(Recipe) if not group_of(entry.type)]


def _groups() -> list[str]:
    return sorted(path.name for path in paths.conf_dir().iterdir() if path.is_dir())


def _options(group: str) -> list[str]:
    found = sorted(path.stem for path in (paths.conf_dir() / group).glob("*.yaml"))
    if group == "model":
        found.remove("library")
        found += [f"{library}/NAME" for library in LIBRARIES]
    return found


def _group_list() -> str:
    return "\n".join(f"  {group}={'|'.join(_options(group))}" for group in _groups())


def _recipe_list() -> str:
    folder = paths.recipes_dir() / "recipe"
    lines = [f"  +recipe={name:<25} {_claim(folder / f'{name}.yaml')}" for name in recipes()]
    return "\n".join(["recipes:", *lines])


def _claim(path: Path) -> str:
    """The first comment line of a recipe says what it claims."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(line[2:] for line in lines if line.startswith("# ") and "@package" not in line)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
