"""Watch each Python process of an audited command from the moment that it has imported torch.

This folder is on PYTHONPATH while `lsgd audit` runs a command. The host's own sitecustomize, which
this one hides, runs too. Nothing here needs lsgd: the script may run in another environment.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WATCH = os.path.join(os.path.dirname(HERE), "watch")
NAME = "lsgd_audit_watch"


class TorchFinder(importlib.abc.MetaPathFinder):
    """The import hook that starts the watch once torch has been imported."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Find torch as Python would, and let its import end with the start of the watch."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_watch(module):  # type: ignore[no-untyped-def]
            execute(module)
            start_watch()

        spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def start_watch() -> None:
    """Import the package of the watch by its path, under a name of its own, and start it."""
    where = os.path.join(WATCH, "__init__.py")
    spec = importlib.util.spec_from_file_location(NAME, where, submodule_search_locations=[WATCH])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    module.start()


def run_hidden_sitecustomize() -> None:
    """Run the host's own sitecustomize, if it has one, as Python would have."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # imported by Python itself, and not by a name inside of lsgd
    if os.environ.get("LSGD_AUDIT"):
        sys.meta_path.insert(0, TorchFinder())
    run_hidden_sitecustomize()
