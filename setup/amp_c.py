"""Run apex's own setup.py, here setup_of_apex.py, for its extension amp_C alone.

amp_C has the kernels of apex's optimizers. APEX_CUDA_EXT=1 asks for it with 10 others, and apex has
no option that chooses among them.
"""

import runpy
from typing import Any

import setuptools

build_all = setuptools.setup


def build_amp_c(*, ext_modules: list[setuptools.Extension], **settings: Any) -> None:
    """Stand in for setuptools.setup, with amp_C as the one extension."""
    build_all(**settings, ext_modules=[each for each in ext_modules if each.name == "amp_C"])


setuptools.setup = build_amp_c
runpy.run_path("setup_of_apex.py")
