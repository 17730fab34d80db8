"""The libraries that only a report needs."""

from importlib import import_module

from lsgd.errors import Refused
from lsgd.installation import install


def check_libraries(extra: str = "report") -> None:
    """Raise Refused where matplotlib or scipy is missing, before work begins that needs both.

    The extra is the one of lsgd that brings them to the command.
    """
    for name, use in (("matplotlib", "its figures"), ("scipy", "the intervals of its differences")):
        try:
            import_module(name)
        except ImportError:
            raise Refused(
                f"a report needs {name} for {use}, and it is not installed; type {install(extra)}"
            ) from None
