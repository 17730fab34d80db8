"""A stand-in for torch's compiler in processes with this folder on PYTHONPATH.

torch and torchvision import the compiler, torch._dynamo, in every process that trains. This takes a
third of the CPU time of a short job, and such a job compiles nothing. The stand-in has only what
they then call, so a job that does compile fails with an AttributeError.
"""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any


def stand_in(name: str, **functions: Any) -> None:
    """Register a module with these functions, which an import of this name then finds."""
    module = ModuleType(name)
    vars(module).update(functions, __path__=[])
    sys.modules[name] = module


rules = SimpleNamespace(clear_lru_cache=lambda: None)
stand_in(
    "torch._dynamo",
    disable=lambda function, *_, **__: function,
    graph_break=lambda: None,
    set_stance=lambda *_, **__: nullcontext(),
    trace_rules=rules,
)
stand_in(
    "torch._dynamo.callback",
    on_compile_start=lambda callback: callback,
    on_compile_end=lambda callback: callback,
)
stand_in("torch._dynamo.utils", is_compile_supported=lambda _: False)
