"""Matplotlib figures of a report, as the content of image files."""

from io import BytesIO

from matplotlib import rc_context
from matplotlib.figure import Figure


def files(figure: Figure, name: str) -> dict[str, bytes]:
    """Return NAME.png and NAME.svg by file name, with the same bytes for the same figure."""
    content = {}
    for form in ("png", "svg"):
        file = BytesIO()
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        content[f"{name}.{form}"] = file.getvalue()
    return content
