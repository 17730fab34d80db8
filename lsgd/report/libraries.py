"""The libraries that only a report needs."""

from importlib import import_module

from lsgd.errors import Refused


def check_libraries() -> None:
    """Raise Refused where matplotlib or scipy is missing, before work begins that needs both."""
    for name, use in (("matplotlib", "its figures"), ("scipy", "the intervals of its differences")):
        try:
            import_module(name)
        except ImportError:
            raise Refused(
                f"a report needs {name} for {use}, and it is not installed; type pip install "
                "'lsgd[report]'"
            ) from None
