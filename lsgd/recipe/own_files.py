"""Recipes, studies and searches in users' own files: where they are, and what they may contain.

Such a file may come from a stranger. It is read by the same rules as a saved configuration: a
bounded size, no aliases, no tags, and no reference to anything but a key of the recipe itself.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml
from yaml import MappingNode, MarkedYAMLError, Node, ScalarNode, SequenceNode, YAMLError

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.override_syntax import ALIASES, format_override, key_and_value, parse_text
from lsgd.recipe import Recipe
from lsgd.recipe.checks import MOST_SKIPPED
from lsgd.recipe.fields import all_fields, group_of
from lsgd.suggestions import did_you_mean
from lsgd.untrusted_files import read_bounded

MAX_FILE_BYTES = 2**22
"""The maximum size in bytes of a configuration file."""
MAX_DEPTH, MAX_VALUES = 20, MOST_SKIPPED + 1_000
"""The maximum nesting depth and number of values of a configuration, with its skip list."""
MAX_DIGITS = 640
"""A number of digits that Python reads whatever its limit is, and that no number of a field has."""
MAX_FILES = 100
"""The most files that a recipe may be made of, each as often as `defaults` name it."""
HYDRA_HEADER = re.compile(r"\s*#+\s*@package\s+_global_\s*")
"""The first line of a shipped recipe, whose unset groups are those of conf/config.yaml."""
PLAIN_TAGS = ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "value")
"""The types of values that YAML gives a text without a tag."""
LR_KEYS = ("lr", "optim.lr", "schedule.lr")
"""The keys of the lr that users of other programs look for."""
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def own_folder() -> Path | None:
    """Return the folder that $LSGD_RECIPES names, or None; raises UsageError if it is missing."""
    text = os.environ.get(paths.OWN_RECIPES)
    if not text:
        return None
    folder = paths.parse_path(text)
    if not os.path.isdir(folder):
        raise UsageError(
            f"--recipe-dir or ${paths.OWN_RECIPES} is {text}, which is not a folder; write the "
            "folder of your own recipes"
        )
    return folder


def is_path(value: str) -> bool:
    """Return whether a recipe, study or search is given by the path of its file, not by name."""
    return value.endswith(paths.YAML_ENDINGS)


def find_own_file(value: str, beside: Path | None = None) -> Path | None:
    """Return the file of a recipe, study or search that a user wrote; None if there is none.

    A path such as ./mine.yaml is relative to the folder `beside`, or else to the current one; if no
    file is there, to $LSGD_RECIPES. A name, such as mine, is that of a file in $LSGD_RECIPES.
    """
    folders = [beside or Path(), own_folder()]
    if is_path(value):
        places = [folder / paths.parse_path(value) for folder in folders if folder]
    elif folders[1] and re.fullmatch(r"\w[\w.+-]*", value):
        places = [folders[1] / f"{value}{ending}" for ending in paths.YAML_ENDINGS]
    else:
        places = []
    # A pipe is refused when it is read. Unlike Path.exists, os.path's raises no error.
    return next((place for place in places if os.path.exists(place)), None)


def own_names(key: str) -> list[str]:
    """Return the names of the files in $LSGD_RECIPES that are recipes, studies or searches.

    `key` is recipe, study or search. A file that cannot be read counts as a recipe.
    """
    folder = own_folder()
    names = paths.yaml_names(folder, paths.YAML_ENDINGS) if folder else []
    return [name for name in names if _kind(name) == key]


def _kind(name: str) -> str:
    path = find_own_file(name)
    with suppress(UsageError):
        return read_own_file(path).kind if path else "recipe"
    return "recipe"


def missing_file_message(override: str, value: str, known: Sequence[str]) -> str:
    """Return why an override such as recipe=NAME chooses nothing, and what may have been meant."""
    name, key = value.strip("'\""), override.partition("=")[0]
    if is_path(name):
        plain = Path(name).stem
        how = (
            f"lsgd's own is {key}={plain}"
            if plain in known
            else "write the path of an existing file"
        )
        return f"{key}={name} does not exist; {how}"
    if is_path(name.lower()):
        renamed = f"{Path(name).stem}{Path(name).suffix.lower()}"
        return f"{override} has an ending in capital letters; rename the file to {renamed}"
    for ending in paths.YAML_ENDINGS:
        if os.path.isfile(f"{name}{ending}"):
            path = f"{name}{ending}" if "/" in name else f"./{name}{ending}"
            return f"{override} does not exist; write {key}={path}"
    return f"{override} does not exist; {did_you_mean(name, [*known, *own_names(key)])}"


@dataclass(frozen=True)
class OwnFile:
    """A user's own YAML file, with the line of each key."""

    path: Path
    text: str
    nodes: Mapping[str, Node]
    """The YAML node of each dotted key, such as optim.momentum."""
    lines: Mapping[str, int]
    """The line of each dotted key, counted from 1."""

    @property
    def shown(self) -> str:
        """The path as messages show it."""
        return paths.display_path(self.path)

    @cached_property
    def is_shipped_format(self) -> bool:
        """Whether the file begins like a shipped recipe, whose unset groups have defaults."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        return bool(HYDRA_HEADER.fullmatch(first))

    @property
    def kind(self) -> str:
        """The kind of definition by the keys of this file: study, search or recipe."""
        keys = self.lines
        return "study" if "entries" in keys else "search" if "space" in keys else "recipe"

    def check_kind(self, kind: str) -> None:
        """Raise UsageError unless this file describes a recipe, a study or a search as asked."""
        # A study or search may lack its main key, but only a recipe has a name.
        is_sure = self.kind != "recipe" or "name" in self.lines
        if self.kind != kind and is_sure:
            command = "train" if self.kind == "recipe" else self.kind
            chosen = format_override(self.kind, str(self.path))
            raise UsageError(
                f"{self.shown} is a {self.kind}, not a {kind}; write lsgd {command} {chosen}"
            )

    @property
    def is_complete(self) -> bool:
        """Whether the recipe has all of its fields itself, as --cfg prints them."""
        return "defaults" not in self.lines and not self.is_shipped_format

    def locate(self, text: str, but: Collection[str] = ()) -> str:
        """Return where this file has the first key that a text names, `FILE, line N`, or nothing.

        The keys in `but` are skipped.
        """
        problem, _, _ = text.partition("; ")  # what follows is the fix
        for token in re.findall(r"[A-Za-z_][\w.]*\w", problem):
            if token in self.lines and token not in but:
                return f"{self.shown}, line {self.lines[token]}"
        return ""

    def line_of(self, key: str) -> int | None:
        """Return the line of a dotted key, or of that whose list it is in; None for no such key."""
        return self.lines.get(key.partition("[")[0])

    def with_texts(self, values: dict[str, Any], kind: type) -> dict[str, Any]:
        """Return the values of this file with the texts of a dataclass's fields as written.

        YAML reads 2026_11 as a number, 12:30 as 750 and yes as true.
        """
        own = {
            entry.name: _as_written(values[entry.name], self.nodes[entry.name], entry.type)
            for entry in fields(kind)
            if entry.name in values and entry.name in self.nodes
        }
        return values | own

    def refuse(self, line: int, why: str) -> NoReturn:
        """Raise UsageError for a line of this file."""
        raise UsageError(f"{self.shown}, line {line}: {why}")


def _as_written(value: Any, node: Node, kind: Any) -> Any:
    """Return a value of this field type with its texts as its YAML node has them.

    Nothing stays null, and a reference to another key stays for OmegaConf.
    """
    if isinstance(node, ScalarNode) and kind in (str, str | None):
        is_kept = node.tag.endswith(":null") or "${" in node.value
        return value if is_kept else str(node.value)
    if isinstance(node, SequenceNode) and isinstance(value, list) and get_origin(kind) is list:
        pairs = zip(value, node.value, strict=True)
        return [_as_written(each, below, get_args(kind)[0]) for each, below in pairs]
    if isinstance(node, MappingNode) and isinstance(value, dict) and (group := group_of(kind)):
        types = {entry.name: entry.type for entry in fields(group)}
        below = {
            key.value: (value[key.value], each) for key, each in node.value if key.value in types
        }
        return value | {key: _as_written(*pair, types[key]) for key, pair in below.items()}
    return value


def read_own_file(path: Path, *, may_refer: bool = True) -> OwnFile:
    """Read a user's own YAML file; raises UsageError, with file and line, if it is not a mapping.

    Keys must be distinct. A recipe `may_refer` to its fields, in a whole value such as ${seed}.
    """
    shown = paths.display_path(path)
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{shown} cannot be read ({why}); write the path of a YAML file") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{shown}, line {line}: it is not UTF-8; save the file as UTF-8") from None
    try:
        check_events(text)
        root = yaml.compose(text, _LOADER)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        why = f"it is not YAML ({error.problem}); fix it"
        if isinstance(error, RefusedYAMLError):
            why = str(error.problem)
        raise UsageError(f"{shown}{where}: {why}") from None
    except (YAMLError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"{shown} cannot be read ({why}); fix it") from None
    if not isinstance(root, MappingNode):
        raise UsageError(
            f"{shown} is not a mapping of keys to values; begin with a line such as name: mine"
        )
    known = _single_values() if may_refer else frozenset()
    nodes: dict[str, Node] = {}
    lines: dict[str, int] = {}
    file = OwnFile(path, text, nodes, lines)
    for node in _nodes(root):
        if node.tag.removeprefix("tag:yaml.org,2002:") not in PLAIN_TAGS:
            line = node.start_mark.line + 1
            file.refuse(line, f"it has a value of type {node.tag}; write a plain value")
    for key, node, line in _keys_below(file, root):
        if key in lines:
            file.refuse(line, f"{key} is there twice, first in line {lines[key]}; write it once")
        nodes[key], lines[key] = node, line
        if not isinstance(node, MappingNode):
            _check_references(file, key, node, known)
    _check_reference_cycles(file)
    return file


@cache
def _single_values() -> frozenset[str]:
    """Return the keys to which a file may refer: fields that are no group, list or dictionary.

    Else references could multiply the values of a file without limit.
    """
    plain = (int, float, str, bool)
    return frozenset(
        key
        for key, entry in all_fields(Recipe)
        if entry.type in plain or {*get_args(entry.type)} & {*plain}
        if get_origin(entry.type) not in (list, dict)
    )


def _nodes(node: Node) -> Iterator[Node]:
    """Yield a YAML node and all nodes inside it."""
    yield node
    for each in node.value if not isinstance(node, ScalarNode) else ():
        for inside in each if isinstance(each, tuple) else (each,):
            yield from _nodes(inside)


def _keys_below(
    file: OwnFile, node: MappingNode, above: str = ""
) -> Iterator[tuple[str, Node, int]]:
    """Yield the dotted key, value and line of each key of a mapping and of those inside it."""
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, ScalarNode) or "${" in name.value:
            file.refuse(line, "it has a key that is not a name; write key: value")
        key = f"{above}{name.value}"
        yield key, value, line
        if isinstance(value, MappingNode):
            yield from _keys_below(file, value, f"{key}.")


def _check_references(file: OwnFile, key: str, node: Node, known: Collection[str]) -> None:
    """Raise UsageError for a reference to anything but another key, or in a part of a text."""
    if isinstance(node, SequenceNode):
        for each in node.value:
            _check_references(file, key, each, known)
    elif isinstance(node, MappingNode):  # in a list; others have keys of their own
        for pair in node.value:
            for each in pair:
                _check_references(file, key, each, known)
    elif isinstance(node, ScalarNode) and "${" in node.value:
        whole = re.fullmatch(r"\$\{([\w.]+)\}", node.value)
        if not whole or whole[1] not in known or whole[1] == key:
            file.refuse(
                node.start_mark.line + 1,
                f"{key}={node.value} is not a reference to another key of a recipe, such as "
                "${seed}; write the value itself",
            )


def _check_reference_cycles(file: OwnFile) -> None:
    """Raise UsageError for references of a file's keys to each other in a circle."""
    targets = {
        key: str(node.value)[2:-1]
        for key, node in file.nodes.items()
        if isinstance(node, ScalarNode) and "${" in node.value
    }
    for key in targets:
        passed, at = {key}, targets[key]
        while at in targets and at not in passed:
            passed.add(at)
            at = targets[at]
        if at == key:
            file.refuse(file.lines[key], f"{key} refers to itself; write the value itself")


class RefusedYAMLError(MarkedYAMLError):  # type: ignore[misc]
    """Error of valid YAML that lsgd does not accept, such as an anchor, a tag or deep nesting."""


def check_events(text: str) -> None:
    """Raise YAMLError if a YAML text has anchors or tags, too many values or too many levels."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, _LOADER)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        # Tags of other types have a message of their own.
        tag = (getattr(event, "tag", None) or "").removeprefix("tag:yaml.org,2002:")
        is_named = isinstance(event, yaml.NodeEvent) and event.anchor is not None
        if isinstance(event, yaml.AliasEvent):
            problem = f"it has the alias *{event.anchor}: write the value itself"
        elif is_named:
            problem = f"it has the anchor &{event.anchor}: leave it out"
        elif tag in PLAIN_TAGS:
            problem = f"it has the tag !!{tag}: leave it out"
        elif isinstance(event, yaml.ScalarEvent) and _is_too_long(event):
            problem = f"it has a number of {len(event.value)} characters: write a smaller one"
        elif depth > MAX_DEPTH or count > MAX_VALUES:
            problem = f"it has more than {MAX_DEPTH} levels or {MAX_VALUES} values: make it shorter"
        else:
            continue
        raise RefusedYAMLError(problem=problem, problem_mark=event.start_mark)


def _is_too_long(event: yaml.ScalarEvent) -> bool:
    """Return whether a YAML value is a number to the base 2, 8 or 16 that has no decimal text.

    Python reads such a number, and raises ValueError where a message has it.
    """
    is_long = len(event.value) >= MAX_DIGITS and event.implicit[0]
    return is_long and re.fullmatch(r"[-+]?0[xb]?[0-9A-Fa-f_]*", event.value) is not None


@dataclass(frozen=True)
class OwnRecipe:
    """A recipe in a user's own file, with the files of the recipes that it builds on."""

    files: list[OwnFile]
    """The file of the recipe itself, then those that it builds on."""

    @property
    def name(self) -> str:
        """The recipe's name, which its file gives."""
        node = self.files[0].nodes["name"]
        assert isinstance(node, ScalarNode)
        return str(node.value)

    def sets(self, key: str) -> bool:
        """Return whether one of the user's own files sets a top-level key of this recipe."""
        return any(key in file.lines for file in self.files)

    def locate(self, refusal: UsageError, overrides: Sequence[str]) -> UsageError:
        """Return the refusal of this recipe with the file and line of the key that it names.

        A key that an override of the command line sets is not the file's.
        """
        said = {key_and_value(word)[0] for word in overrides}
        # Many refusals mention a name; this one is of the name itself.
        said |= {"defaults"} if str(refusal).startswith("name=") else {"name", "defaults"}
        places = (file.locate(str(refusal), said) for file in self.files)
        where = next(filter(None, places), "")
        return UsageError(f"{where}: {refusal}") if where else refusal


def own_recipe(overrides: Sequence[str]) -> OwnRecipe | None:
    """Read and check the user's own recipe that the overrides choose; None for a shipped one.

    Raises UsageError, also for a recipe that builds on itself.
    """
    values = [value for key, value in map(key_and_value, overrides) if key == "recipe"]
    value = parse_text("recipe", values[0]) if len(values) == 1 else None
    # A shipped recipe has its name to itself; a user's own of that name is chosen by its path.
    if not value or paths.is_recipe_name(value):
        return None
    path = find_own_file(value)
    return path and OwnRecipe(_read_chain(path, []))  # type: ignore[return-value]


def find_recipe(text: str, beside: Path) -> tuple[str, str | None]:
    """Return the name of a recipe in a study or search, and its file if it is a user's own.

    A path is relative to the folder `beside`. Raises UsageError for a wrong file.
    """
    path = None if paths.is_recipe_name(text) else find_own_file(text, beside)
    if path is None:
        return text, None
    return OwnRecipe(_read_chain(path, [])).name, str(path)


def _read_chain(
    path: Path, above: Sequence[OwnFile], read: list[Path] | None = None
) -> list[OwnFile]:
    """Read a recipe's file and the user's own files that it builds on; raises UsageError."""
    read = [] if read is None else read
    read.append(path)
    if len(read) > MAX_FILES:
        raise UsageError(f"{above[0].shown} builds on {MAX_FILES} files or more; name each once")
    file = read_own_file(path)
    _check_recipe_keys(file)
    chain = [file]
    for line, base in bases(file):
        own = base_file(file, base)
        if own is None:
            continue
        builders = [*above, file]
        if any(own.resolve() == each.path.resolve() for each in builders):
            through = " -> ".join(each.path.name for each in builders)
            file.refuse(
                line,
                f"defaults has {base}, which leads back to itself ({through} -> {own.name}); "
                "build on another recipe",
            )
        chain += _read_chain(own, builders, read)
    complete = next((each for each in chain[1:] if each.is_complete), None)
    choices = [each for each in _default_entries(file) if isinstance(each, MappingNode)]
    if complete and choices:
        file.refuse(
            choices[0].start_mark.line + 1,
            f"defaults chooses from a group, all of whose fields {complete.shown} has; write the "
            "fields themselves",
        )
    return chain


def _check_recipe_keys(file: OwnFile) -> None:
    """Raise UsageError if a recipe's file has no name, or a key that no recipe has."""
    file.check_kind("recipe")
    known = [entry.name for entry in fields(Recipe)]
    for key, line in file.lines.items():
        above, _, own = key.rpartition(".")
        if above and above not in file.lines:
            file.refuse(line, f"{key} is a key inside of a group; write {above}: {{{own}: VALUE}}")
        if key in LR_KEYS:
            file.refuse(line, lr_message(key))
        if not above and ALIASES.get(key, key) not in (*known, "defaults"):
            why = (
                "batch_size is workers x worker_batch and not set itself; write workers"
                if key == "batch_size"
                else f"there is no key '{key}'; {did_you_mean(key, known)}"
            )
            file.refuse(line, why)
    _check_numbers(file)
    skip_list = file.nodes.get("data.skip_list")
    if skip_list and not skip_list.tag.endswith(":null"):
        file.refuse(
            file.lines["data.skip_list"],
            "data.skip_list is another file, which a recipe's own file may not name; list the "
            "images in data.skip, or write data.skip_list=… on the command line",
        )
    name = file.nodes.get("name")
    if not isinstance(name, ScalarNode) or name.tag.endswith(":null") or not name.value:
        example = re.sub(r"\W", "_", file.path.stem)
        raise UsageError(
            f"{file.shown} has no name, by which runs and reports call a recipe; write a line such "
            f"as name: {example}"
        )
    if "${" in name.value:
        file.refuse(file.lines["name"], "name refers to another key; write the name itself")
    if file.is_complete and (
        missing := [key for key in ("data", "model") if not file.nodes.get(key)]
    ):
        raise UsageError(
            f"{file.shown} has neither defaults nor {missing[0]}; build it on a recipe by a line "
            "such as defaults: [bs256], or write all fields, as --cfg prints them"
        )


def _check_numbers(file: OwnFile) -> None:
    """Raise UsageError for numbers that YAML reads to another base, such as 1:30 as 90."""
    kinds = {key: str(entry.type) for key, entry in all_fields(Recipe)}
    for key, value in file.nodes.items():
        if "str" in kinds.get(key, "") or isinstance(value, MappingNode):
            continue
        for node in _nodes(value):
            if node.tag.endswith((":int", ":float")) and _is_to_another_base(str(node.value)):
                file.refuse(
                    node.start_mark.line + 1,
                    f"{key}={node.value} is a number to the base 60 or 8 in YAML; write it to the "
                    "base 10, or quote a text",
                )


def _is_to_another_base(text: str) -> bool:
    """Return whether YAML reads a number to the base 60 or 8, with another value than to 10."""
    digits = text.replace("_", "")
    is_octal = re.fullmatch(r"[-+]?0[0-7]+", digits) is not None
    return ":" in text or (is_octal and int(digits, 8) != int(digits, 10))


def lr_message(key: str) -> str:
    """Return the error message for a key of LR_KEYS."""
    return (
        f"{key} is not set itself: the lr of a step is schedule.reference_lr, scaled from "
        "schedule.reference_batch to the minibatch; write schedule.reference_lr=…"
    )


def _default_entries(file: OwnFile) -> list[Node]:
    """Return the entries of `defaults` in a recipe's file; raises UsageError if it is no list."""
    node = file.nodes.get("defaults")
    if node is not None and not isinstance(node, SequenceNode):
        file.refuse(file.lines["defaults"], "defaults is not a list; write defaults: [bs256]")
    return node.value if node else []


def bases(file: OwnFile) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each recipe in the `defaults` of a file; raises UsageError.

    `defaults` may also have `_self_`, and choices of config groups, `override /data: digits`.
    """
    has_self = False
    for entry in _default_entries(file):
        line = entry.start_mark.line + 1
        if has_self and isinstance(entry, ScalarNode):
            file.refuse(
                line,
                f"defaults has {entry.value} after _self_, so that it would replace the values of "
                "this file; leave _self_ out",
            )
        has_self |= isinstance(entry, ScalarNode) and entry.value == "_self_"
        if isinstance(entry, ScalarNode) and entry.value != "_self_":
            if base_file(file, entry.value) is None and not paths.is_recipe_name(entry.value):
                message = missing_file_message(
                    f"recipe={entry.value}", entry.value, paths.recipe_names()
                )
                file.refuse(line, f"defaults: {message}")
            yield line, entry.value
        elif not isinstance(entry, ScalarNode):
            _check_choice(file, line, entry)


def _check_choice(file: OwnFile, line: int, entry: Node) -> None:
    """Raise UsageError unless an entry of `defaults` is `override /GROUP: CHOICE`.

    null is the choice of nothing, where the recipe's file has all fields of the group.
    """
    pairs = entry.value if isinstance(entry, MappingNode) else []
    key, value = pairs[0] if len(pairs) == 1 else (None, None)
    found = re.fullmatch(r"override /(\w+)", key.value) if isinstance(key, ScalarNode) else None
    folder = paths.conf_dir() / (found[1] if found else "")
    if not found or not folder.is_dir() or not isinstance(value, ScalarNode):
        file.refuse(
            line, "defaults takes recipes and choices of groups; write - override /data: digits"
        )
    is_none = value.tag.endswith(":null")
    if not is_none and value.value not in (known := paths.yaml_names(folder)):
        hint = did_you_mean(value.value, known)
        file.refuse(line, f"{found[1]}: {value.value} does not exist; {hint}")


def base_file(file: OwnFile, base: str) -> Path | None:
    """Return the user's own file that an entry of `defaults` means; None for a shipped recipe."""
    if paths.is_recipe_name(base):
        return None
    return find_own_file(base, beside=file.path.parent)
