"""Runs a training script in this process, watched as by lsgd audit if LSGD_AUDIT is set.

    python watched_script.py SECONDS SCRIPT [ARGUMENT …]

After that many seconds it writes the stacks of all threads and exits.
"""

import faulthandler
import os
import runpy
import sys

from lsgd.audit import watch

faulthandler.enable()
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
if "LSGD_AUDIT" in os.environ:
    watch.start()
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
