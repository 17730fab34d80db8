"""A figure of a report as the content of its files."""

from io import BytesIO

from matplotlib import rc_context
from matplotlib.figure import Figure


def files(figure: Figure, name: str) -> dict[str, bytes]:
    """NAME.png and NAME.svg, by file name; the same figure makes the same bytes."""
    content = {}
    for form in ("png", "svg"):
        file = BytesIO()
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        content[f"{name}.{form}"] = file.getvalue()
    return content
