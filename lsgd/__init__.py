"""Large-minibatch SGD on ImageNet (Goyal et al. 2017), one trajectory on any hardware."""

import sys

__version__ = "0.1.0"

# `python -m lsgd.COMMAND`: this comes before the command's own imports, and nowhere else.
if sys.argv[:1] == ["-m"]:
    # None of these is a program of its own, which Python would warn of.
    from lsgd.at_once import answer
    from lsgd.job.garbage import put_off
    from lsgd.job.interrupt import leave_at_once
    from lsgd.job.parent import note_parent
    from lsgd.job.starting import prepare_for_torch

    put_off()
    leave_at_once()
    prepare_for_torch()
    note_parent()  # a launcher may be killed before the imports are over
    # What Python was started with, less the words: the name of the module.
    answer(sys.orig_argv[-len(sys.argv)].removeprefix("-m").removeprefix("lsgd."), sys.argv[1:])
