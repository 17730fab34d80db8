"""The choice of hardware=auto for a recipe on this machine, as training makes it, and its time.

XDG_CACHE_HOME=$(mktemp -d) python results/2026-11-27-auto/choices.py recipe=bs256
"""

import os
import sys
import time

from lsgd import config
from lsgd.job.starting import prepare_for_torch

prepare_for_torch()
import torch  # noqa: E402

from lsgd.autotune import resolve_auto_fields  # noqa: E402
from lsgd.comm.single import SingleComm  # noqa: E402

recipe = config.load_recipe(sys.argv[1:], is_tuned=True)
begin, used = time.perf_counter(), time.process_time()
_, lines = resolve_auto_fields(recipe, {}, SingleComm(), torch.device("cpu"))
print(*lines, sep="\n")
print(
    f"{time.perf_counter() - begin:.1f} s, {time.process_time() - used:.1f} s of the processor, "
    f"load {os.getloadavg()[0]:.1f}"
)
