"""The check for the libraries that only a report needs."""

from importlib import import_module

from lsgd.errors import UsageError
from lsgd.installation import install_command


def check_libraries(extra: str = "report") -> None:
    """Raise UsageError if matplotlib or scipy, which every report needs, is missing.

    It is called before the work that needs both. `extra` is the optional dependency group of lsgd
    that installs them.
    """
    for name, use in (("matplotlib", "its figures"), ("scipy", "the intervals of its differences")):
        try:
            import_module(name)
        except ImportError:
            raise UsageError(
                f"a report needs {name} for {use}, which is not installed; run "
                f"{install_command(extra)}"
            ) from None
