"""Reports on runs, with the paper's tables and figures: `python -m lsgd.report`."""

from lsgd.report.folder import report

__all__ = ["report"]
