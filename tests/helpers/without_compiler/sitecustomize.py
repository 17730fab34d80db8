"""Replace torch._dynamo by the calls of a process that compiles nothing, all without an effect.

Python imports this module at its start if its folder is on PYTHONPATH. To import torch._dynamo, as
torch.optim does at the first step, takes two fifths of the CPU time in which a training process
starts. Any other use of torch._dynamo fails here.
"""

import sys
from contextlib import nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace


def do_nothing(*_: object) -> None:
    """Do nothing."""


REPLACED = {
    "torch._dynamo": {
        "disable": lambda function, *_, **__: function,
        "graph_break": do_nothing,
        "set_stance": lambda *_, **__: nullcontext(),
        "trace_rules": SimpleNamespace(clear_lru_cache=do_nothing),
    },
    "torch._dynamo.callback": {"on_compile_start": do_nothing, "on_compile_end": do_nothing},
    "torch._dynamo.utils": {"is_compile_supported": do_nothing},
}
"""The calls of torch.optim, torch.distributed, torchvision and lsgd.job.preemption."""


class WithoutCompiler(MetaPathFinder, Loader):
    """The finder and loader of a torch._dynamo whose calls do nothing."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the replacement; other modules are found as without this."""
        return ModuleSpec(fullname, self, is_package=True) if fullname in REPLACED else None

    def exec_module(self, module: ModuleType) -> None:
        """Define the calls."""
        vars(module).update(REPLACED[module.__name__])


sys.meta_path.insert(0, WithoutCompiler())
