"""Early replies to a command line that do not need the command's own slow imports."""

import os
import sys
from collections.abc import Sequence

from lsgd.errors import UsageError


def reply_early(command: str, arguments: Sequence[str]) -> None:
    """Answer `--version` and invalid command lines before the slow imports of an lsgd command.

    Refused are a removed current folder and, for commands whose arguments are only a recipe's
    overrides, every error in these. Ends by SystemExit after a reply; else returns.
    """
    # Imported where they are used, since most command lines need neither module.
    if arguments[:1] == ["--version"]:
        from lsgd.run import provenance

        print(provenance.version())
        raise SystemExit(0)
    try:
        os.getcwd()
    except FileNotFoundError:  # torch cannot be imported in such a folder
        print("lsgd: the current folder was removed; change to another one", file=sys.stderr)
        raise SystemExit(UsageError.exit_code) from None
    asks = {"-h", "--help", "--explain"} & {*arguments}
    if command not in ("train", "check") or asks or _launched():
        return
    from lsgd.config import check_command_line

    try:
        check_command_line(arguments)
    except UsageError as refusal:
        print(f"lsgd: {refusal}", file=sys.stderr)
        raise SystemExit(refusal.exit_code) from None


def _launched() -> bool:
    """Return whether a launcher, such as torchrun, started this process.

    Then only rank 0 may print a refusal.
    """
    from lsgd.job.launcher import detect_launch

    try:
        return detect_launch().launcher != "none"
    except UsageError:
        return True
