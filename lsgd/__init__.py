"""Large-minibatch SGD on ImageNet (Goyal et al. 2017), one trajectory on any hardware."""

import sys

__version__ = "0.1.0"

# `python -m lsgd.COMMAND`: this comes before the command's own imports, and nowhere else.
if sys.argv[:1] == ["-m"]:
    from lsgd.job.ending import note_parent
    from lsgd.job.garbage import put_off
    from lsgd.job.interrupt import leave_at_once

    put_off()
    leave_at_once()
    note_parent()  # a launcher may be killed before the imports are over
