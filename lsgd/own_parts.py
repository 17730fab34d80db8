"""Parts of one's own: optimizers, networks, workloads of other packages, by import path.

A recipe names such a part as `package.module:Name`, or by the name of an entry point of an
installed package. Only `import_part` imports: for a part that a command line or a recipe to train
names. What only reads a run, with `imported_part`, executes nothing of it.
"""

import ast
import difflib
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

from lsgd.errors import UsageError
from lsgd.typed import describe, fits

IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The form of the import path of a part, such as mypackage.rules:Lion."""
FORM = "package.module:Name"
"""The form of an import path, as messages and lists of choices show it."""
PINNED = ("lsgd", "torch", "torchvision")
"""The packages whose versions a run records; of their parts only the module itself is hashed."""
Plain = bool | int | float | str
"""The types of a value that a recipe can have in the options of a part, also within lists."""


@dataclass(frozen=True)
class PartKind:
    """A kind of parts: the field of a recipe that names one, and what each part has to be."""

    key: str
    """The field of the recipe, such as optim.name."""
    entry_point_group: str
    base: str
    """The import path of the class that a part derives from, or of the protocol that it has."""
    required: tuple[str, ...]
    """The arguments that lsgd passes to each part, which has to take them."""
    optional: tuple[str, ...] = ()
    """The arguments that lsgd passes to a part that takes them, and that are not options."""
    prefix: str = ""
    """The beginning of the names of the fields of its options and source, where others are near."""
    by_field: bool = False
    """Whether a part is chosen by its field, such as metric.name, and not by its group."""

    @property
    def choice(self) -> str:
        """The key of the override that chooses a part, such as optim."""
        return self.key if self.by_field else self.group

    @property
    def group(self) -> str:
        """The group of recipe fields of this kind, such as optim."""
        return self.key.partition(".")[0]

    @property
    def field(self) -> str:
        """The field of that group that names the part, such as name."""
        return self.key.partition(".")[2]

    def options_key(self, option: str) -> str:
        """Return the field of the recipe that sets an option of a part."""
        return f"{self.group}.{self.prefix}options.{option}"

    def named(self, recipe: Any) -> str:
        """Return the name of the part or choice of this kind that a recipe has."""
        return str(getattr(getattr(recipe, self.group), self.field))

    def options_of(self, recipe: Any) -> dict[str, Any]:
        """Return the options that a recipe has for its part of this kind."""
        return dict(getattr(getattr(recipe, self.group), f"{self.prefix}options"))

    def source_of(self, recipe: Any) -> str:
        """Return the hash of the source that a recipe has for its part; empty without one."""
        return str(getattr(getattr(recipe, self.group), f"{self.prefix}source"))


OPTIMIZER = PartKind(
    "optim.name", "lsgd.optim", "torch.optim:Optimizer", ("params",), ("lr", "weight_decay")
)
NETWORK = PartKind(
    "model.name", "lsgd.model", "torch.nn:Module", ("classes",), ("channels", "image_size")
)
LOADER = PartKind(
    "inputs.loader", "lsgd.inputs", "lsgd.inputs:Inputs", ("data",), ("seed", "device")
)
SCHEDULE = PartKind("schedule.decay", "lsgd.schedule", "lsgd.rules.schedule:LrDecay", ())
AUGMENTATION = PartKind(
    "data.augmentation",
    "lsgd.augmentation",
    "lsgd.inputs:Augmentation",
    (),
    ("seed", "data"),
    prefix="augmentation_",
    by_field=True,
)
METRIC = PartKind(
    "metric.name",
    "lsgd.metric",
    "lsgd.workloads.own_metric:ImageMetric",
    (),
    ("classes",),
    by_field=True,
)
WORKLOAD = PartKind(
    "data.workload",
    "lsgd.workload",
    "lsgd.workloads.own:OwnWorkload",
    ("recipe", "device"),
    prefix="workload_",
    by_field=True,
)
KINDS = (OPTIMIZER, NETWORK, LOADER, SCHEDULE, AUGMENTATION, METRIC, WORKLOAD)


@dataclass(frozen=True)
class Option:
    """An option of a part: its type, and its default if it has one."""

    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        """Whether the part has no default for this option."""
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class OwnPart:
    """An imported part: its class or function, its options and the hash of its source."""

    kind: PartKind
    path: str
    make: Callable[..., Any]
    options: dict[str, Option]
    arguments: frozenset[str]
    """The arguments that lsgd passes."""
    takes_any: bool
    """Whether the part takes options of any name (**kwargs)."""
    source: str
    """The SHA-256 of its module and of all modules of its package that this one imports."""

    @property
    def override(self) -> str:
        """The override that chooses this part, such as optim=mypackage.rules:Lion."""
        return f"{self.kind.choice}={self.path}"

    @property
    def made_class(self) -> Any:
        """The class of what the part makes: itself, or what the function is annotated to return."""
        return _made_class(self.make)

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check options and add the defaults of all others that a recipe can hold.

        Raises UsageError for an unknown or missing option, or a value of a wrong type.
        """
        for name, value in given.items():
            option, key = self.options.get(name), self.kind.options_key(name)
            if option is None and not self.takes_any:
                raise UsageError(
                    f"there is no key '{key}' with {self.override}; {self._hint(name)}"
                )
            if not _is_plain(value) or (option and not fits(value, option.type)):
                what = "a number, a text or a list" if option is None else describe(option.type)
                raise UsageError(
                    f"{key}={value} is not {what}, which {self.override} takes; write one"
                )
        for name, option in self.options.items():
            if option.is_required and name not in given:
                raise UsageError(
                    f"{self.override} needs {self.kind.options_key(name)}, which has no default; "
                    f"write {self.kind.options_key(name)}=… ({describe(option.type)})"
                )
        defaults = {name: _as_plain(option.default) for name, option in self.options.items()}
        return {name: value for name, value in defaults.items() if _is_plain(value)} | dict(given)

    def check_source(self, source: str) -> None:
        """Raise UsageError unless this is the hash of the part's source."""
        if source != self.source:
            raise UsageError(
                f"{self.override} has changed since the recipe was written (source {source[:12]}…, "
                f"now {self.source[:12]}…); restore its source, or train another run"
            )

    def keywords(self, options: Mapping[str, Any], **passed: Any) -> dict[str, Any]:
        """Return the arguments of `make`: a recipe's options and what it takes of `passed`."""
        given = {
            name: tuple(value) if isinstance(value, list) and self._is_tuple(name) else value
            for name, value in options.items()
        }
        return given | {name: value for name, value in passed.items() if name in self.arguments}

    def __call__(self, options: Mapping[str, Any], **passed: Any) -> Any:
        """Make the part by `keywords`; raises UsageError with the first line of what it raises."""
        try:
            return self.make(**self.keywords(options, **passed))
        except UsageError:
            raise
        except Exception as error:
            raise self.refusal(options, error) from error

    def refusal(self, options: Mapping[str, Any], error: Exception) -> UsageError:
        """Return the error for a part that cannot be made with these options."""
        return UsageError(
            f"{self.override} cannot be made with options={dict(options)} "
            f"({type(error).__name__}: {first_line(error)}); write options that it takes, or fix "
            "it"
        )

    def _is_tuple(self, name: str) -> bool:
        option = self.options.get(name)
        return option is not None and isinstance(option.default, tuple)

    def _hint(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.options, 1)
        if near:
            return f"did you mean {self.kind.options_key(near[0])}?"
        return f"its options are {', '.join(self.options) or 'none'}"


_imported: dict[tuple[str, str], OwnPart] = {}
"""The parts that this process has imported, by field and import path, as sys.modules keeps modules.

A part keeps the hash that its source had when it was imported, which is the code that runs.
"""


def is_import_path(name: Any) -> bool:
    """Return whether the value of a recipe field is the import path of a part.

    >>> is_import_path("mypackage.rules:Lion"), is_import_path("sgd"), is_import_path("timm/a")
    (True, False, False)
    """
    return bool(IMPORT_PATH.fullmatch(str(name)))


def snake_case(path: str) -> str:
    """Convert the class name at the end of an import path to snake case.

    >>> snake_case("mypackage.metrics:MacroF1Error"), snake_case("mypackage:RMSE")
    ('macro_f1_error', 'rmse')
    """
    name = path.rpartition(":")[2]
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parts.strip("_").lower()


def installed_parts(kind: PartKind) -> dict[str, str]:
    """Return the import paths of the parts that installed packages declare, by their names.

    Raises UsageError if two packages declare different parts of one name.
    """
    found: dict[str, str] = {}
    for entry in entry_points(group=kind.entry_point_group):
        if found.setdefault(entry.name, entry.value.strip()) != entry.value.strip():
            raise UsageError(
                f"{kind.choice}={entry.name} is {found[entry.name]} of one installed package and "
                f"{entry.value} of another; write the import path itself"
            )
    return found


def import_part(kind: PartKind, path: str) -> OwnPart:
    """Import a part by its import path; raises UsageError if it is missing, broken or no part."""
    key = kind.key, path
    if key not in _imported:
        _imported[key] = _import(kind, path)
    return _imported[key]


def imported_part(kind: PartKind, path: str, source: str) -> OwnPart:
    """Return a part whose recipe has been loaded in this process, or that is installed as one.

    Raises UsageError for any other, whose recipe a file of somebody else may name, and if the
    source of the part has another hash than that in the recipe.
    """
    if (kind.key, path) not in _imported and path not in installed_parts(kind).values():
        raise UsageError(
            f"{kind.choice}={path} is code outside of lsgd, which a file names and no command "
            f"line; add {kind.choice}={path} to the command line (in a Python program, to "
            "load_recipe in the same process) to import it, if you trust it"
        )
    part = import_part(kind, path)
    part.check_source(source)
    return part


def _import(kind: PartKind, path: str) -> OwnPart:
    shown = f"{kind.choice}={path}"
    if not is_import_path(path):
        raise UsageError(f"{shown} is not an import path; write {kind.choice}={FORM}")
    module_name, _, name = path.partition(":")
    importlib.invalidate_caches()  # its file may be younger than this process
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{shown} cannot be imported, since there is no module {error.name}; install its "
            "package, or put its folder on PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{shown} cannot be imported, since {module_name} raises {type(error).__name__} "
            f"({first_line(error)}); fix {module_name}"
        ) from error
    target = getattr(module, name, None)
    if target is None:
        near = difflib.get_close_matches(name, dir(module), 1)
        remedy = f"did you mean {near[0]}?" if near else f"write a name that {module_name} has"
        raise UsageError(f"{shown} does not exist in {module_name}; {remedy}")
    _check_kind(kind, shown, target)
    options, takes_any = _options(shown, target)
    if lacking := [each for each in kind.required if each not in options and not takes_any]:
        raise UsageError(
            f"{shown} takes no argument {lacking[0]}, which lsgd passes to each "
            f"part of {kind.choice}; add it to its signature"
        )
    passed = (*kind.required, *kind.optional)
    return OwnPart(
        kind,
        path,
        target,
        {each: option for each, option in options.items() if each not in passed},
        frozenset(each for each in passed if each in options or each in kind.required),
        takes_any,
        _source_digest(shown, [module_name, getattr(target, "__module__", module_name)]),
    )


def _check_kind(kind: PartKind, shown: str, target: Any) -> None:
    """Raise UsageError unless a class is of this kind, or a function is annotated to return one.

    Nothing is called before: any other name, such as os:system, is only looked at.
    """
    base_module, _, base_name = kind.base.partition(":")
    base = getattr(importlib.import_module(base_module), base_name)
    made = _made_class(target)
    if getattr(base, "_is_protocol", False):
        public = {name: each for name, each in vars(base).items() if not name.startswith("_")}
        methods = [name for name, each in public.items() if inspect.isfunction(each)]
        lacking = [each for each in methods if not callable(getattr(made, each, None))]
        if inspect.isclass(made) and not lacking:
            return
        what = (
            f"has no method {lacking[0]}" if lacking and inspect.isclass(made) else "is not a class"
        )
    else:
        if inspect.isclass(made) and issubclass(made, base):
            return
        module = base.__module__.removesuffix(".module").removesuffix(".optimizer")
        if module.startswith("lsgd."):
            module = "lsgd.parts"  # from which a package takes it
        what = f"is not a {module}.{base_name}"
    raise UsageError(
        f"{shown} {what}; write a class that is one, or a function that is annotated to return one"
    )


def _made_class(target: Any) -> Any:
    """Return a class, or what a function is annotated to return."""
    return _type_hints(target).get("return") if inspect.isfunction(target) else target


def _options(shown: str, target: Any) -> tuple[dict[str, Option], bool]:
    """Return the named arguments of a class or function, and whether it takes any others."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(
            f"{shown} has no signature that Python can read; write a class or function in Python"
        ) from None
    hints = _type_hints(target.__init__ if inspect.isclass(target) else target)
    options, takes_any = {}, False
    for each in parameters:
        takes_any = takes_any or each.kind is each.VAR_KEYWORD
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            kind = hints.get(each.name, Any if each.default in (each.empty, None) else None)
            options[each.name] = Option(kind or type(_plain_number(each.default)), each.default)
    return options, takes_any


def _type_hints(target: Any) -> dict[str, Any]:
    """Return the annotations of a function; none where one of them cannot be evaluated."""
    try:
        return get_type_hints(target)
    except Exception:
        return {}


def _is_plain(value: Any) -> bool:
    return isinstance(value, Plain) or (isinstance(value, list) and all(map(_is_plain, value)))


def _as_plain(default: Any) -> Any:
    if isinstance(default, tuple | list):
        return [_as_plain(each) for each in default]
    return _plain_number(default)


def _plain_number(value: Any) -> Any:
    """Return a scalar of numpy as the number that it is, and any other value as it is."""
    # numpy needs no import here: of its types and torch's only scalars have no length.
    return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value


def _source_digest(shown: str, modules: Sequence[str]) -> str:
    """Return the SHA-256 of modules and of those of their packages that they import."""
    contents: dict[str, bytes] = {}
    waiting = [*modules]
    while waiting:
        name = waiting.pop()
        if name in contents or (file := _module_file(name)) is None:
            continue
        contents[name] = file.read_bytes().replace(b"\r\n", b"\n")
        package = name.partition(".")[0]
        if package in PINNED:
            continue
        above = name.split(".")[:-1]
        waiting += [".".join(above[: end + 1]) for end in range(len(above))]
        if file.suffix == ".py":
            is_package = file.name == "__init__.py"
            for other in _imports(contents[name], name if is_package else ".".join(above)):
                waiting += [other] * (other.partition(".")[0] == package)
    if not contents:
        raise UsageError(f"{shown} has no file of source, which identifies it; write it into one")
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def _module_file(name: str) -> Path | None:
    """Return the file of a module; None for a name that is no module, or a module without one."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = Path(getattr(loaded, "__file__", None) or "")
        return file if file.is_file() else None
    # Found beside the files of its package, since to ask Python for it may import others.
    above, _, last = name.rpartition(".")
    init = _module_file(above) if above else None
    folders = [*getattr(sys.modules.get(above), "__path__", [])]
    if not folders and init and init.name == "__init__.py":
        folders = [str(init.parent)]
    found = (Path(each, end) for each in folders for end in (f"{last}.py", f"{last}/__init__.py"))
    return next((file for file in found if file.is_file()), None)


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the names that a module of a package may import, also those that are no modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) - max(0, node.level - 1)]
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


@contextmanager
def refusing_errors(what: str) -> Iterator[None]:
    """Convert an error of a part's code into UsageError; `what` says which part fails where."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what} ({type(error).__name__}: {first_line(error)}); fix it") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
