"""Large-minibatch SGD on ImageNet (Goyal et al. 2017), one trajectory on any hardware."""

import sys

__version__ = "0.1.0"

# Before anything that an older Python lacks, and in a syntax that it has.
if sys.version_info < (3, 11):  # noqa: UP036
    _reason = f"lsgd needs Python 3.11, 3.12 or 3.13, and {sys.executable} is older"
    raise SystemExit(_reason) if sys.argv[:1] == ["-m"] else ImportError(_reason)

# Under `python -m lsgd.COMMAND` this runs before the command's own imports. sys.argv[0] is still
# "-m", so the name of the module is taken from Python's own command line; it may be that of another
# program, whose package imports lsgd.
_command = sys.orig_argv[-len(sys.argv)].removeprefix("-m") if sys.argv[:1] == ["-m"] else ""
if _command.partition(".")[0] == "lsgd":
    # Python warns if a module that it is about to run is imported here; none of these is a command.
    from lsgd.early_replies import reply_early
    from lsgd.job.interrupt import exit_on_interrupt
    from lsgd.job.parent import note_parent
    from lsgd.job.starting import defer_gc, prepare_for_torch

    defer_gc()
    exit_on_interrupt()
    prepare_for_torch()
    note_parent()  # a launcher may be killed before the imports are over
    reply_early(_command.removeprefix("lsgd."), sys.argv[1:])
