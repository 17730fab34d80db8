"""Rules of correctness that hold for every paper and that only a script outside of lsgd can break.

A recipe is not asked them, since it has no way to break them.
"""

from lsgd.check.observation import Rule

RULES = {
    "parameters": Rule("any", "equal in all processes, before and after each update", bool),
    "training_mode": Rule("any", "every update is of passes in training mode", bool),
    "evaluation_mode": Rule("any", "evaluated in evaluation mode, without gradients", bool),
    "clipping": Rule("any", "gradients are clipped after the loss scale is taken out", bool),
    "random_streams": Rule(
        "any", "each data worker of each process and epoch draws its own random numbers", bool
    ),
}
