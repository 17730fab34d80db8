"""Answers to a command line that need none of the command's own imports, which take seconds."""

import sys
from collections.abc import Sequence

from lsgd.errors import Refused


def answer(command: str, words: Sequence[str]) -> None:
    """Answer `--version`, and refuse what a command that has a recipe's words alone would refuse.

    Ends by SystemExit then, with a sentence for what is refused; else returns.
    """
    # Not here, since most command lines need neither.
    if words[:1] == ["--version"]:
        from lsgd.run import provenance

        print(provenance.version())
        raise SystemExit(0)
    if command not in ("train", "check") or {"-h", "--help"} & {*words} or _launched():
        return
    from lsgd.config import check_line

    try:
        check_line(words)
    except Refused as refusal:
        print(f"lsgd: {refusal}", file=sys.stderr)
        raise SystemExit(refusal.exit_code) from None


def _launched() -> bool:
    """Whether other processes would say the same, of which the first alone is to speak."""
    from lsgd.job.launcher import detect

    try:
        return detect().launcher != "none"
    except Refused:
        return True
