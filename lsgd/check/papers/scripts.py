"""Rules that hold for every paper and that only a script outside of lsgd can break.

A recipe is not asked them, since it has no way to break them. Sections are of Goyal et al. 2017.
"""

from lsgd.check.observation import Rule

RULES = {
    "gradient": Rule("3", "normalised by kn, not n; without weight decay", bool),
    "batchnorm": Rule("2.3", "statistics over one worker's n images, never shared", bool),
    "shuffling": Rule(
        "3, 5.1", "one random permutation per epoch, divided among the workers", bool
    ),
    "evaluation": Rule("5.1", "top-1 error over all validation images", bool),
    "parameters": Rule("any", "equal in all processes, before and after each update", bool),
    "training_mode": Rule("any", "every update is of passes in training mode", bool),
    "evaluation_mode": Rule("any", "evaluated in evaluation mode, without gradients", bool),
    "clipping": Rule("any", "gradients are clipped after the loss scale is taken out", bool),
    "random_streams": Rule(
        "any", "each data worker of each process and epoch draws its own random numbers", bool
    ),
}
