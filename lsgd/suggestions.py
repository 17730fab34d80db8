"""Suggestions for an unknown word of a command line: the names that may have been meant."""

import difflib
from collections.abc import Collection, Sequence

MAX_LISTED_NAMES = 24
"""The number of names from which on a message no longer lists all of them."""
PROCESSES = "python -m lsgd.launch local NAME --np N starts the recipe NAME on N processes"
SWEEPS = (
    "python -m lsgd.search tries values of fields, and python -m lsgd.study trains several recipes "
    "and seeds"
)
RESUMES = "rerun the command with run_dir=RUN, the run folder, to resume a run"
TRAINS = "python -m lsgd.train recipe=NAME trains a recipe"

FOREIGN_EQUIVALENTS: dict[str, tuple[str, ...]] = {
    # Requests to any command, as pip, Git and argparse take them.
    "help usage man": ("--help",),
    "version v": ("--version", "lsgd --version prints version and commit"),
    "list ls": ("--help",),
    "recipes": ("--recipes", "python -m lsgd.train --recipes lists the recipes"),
    "fields": ("--fields", "python -m lsgd.train --fields lists the fields"),
    "dry-run dryrun": (
        "--print",
        "rehearse=true for a dry run, or --cfg to print only its configuration",
    ),
    "print show-config print-config job": ("--print", "--cfg"),
    "status": ("--status", "lsgd launch --status RUN prints the state of a run and of its job"),
    "out output o output-dir outdir out-dir save-dir work-dir logdir log-dir default-root-dir": (
        "--out",
        "run_dir=",
    ),
    "format f": ("--to",),
    # Subcommands of other projects.
    "run fit start": (TRAINS,),
    "eval validate val test evaluate": ("python -m lsgd.evaluate RUN prints the error of a run",),
    "inference infer classify": ("python -m lsgd.predict RUN IMAGE predicts its class",),
    "resume restart continue": (RESUMES,),
    "checkpoint ckpt ckpt-path load resume-from-checkpoint": (RESUMES,),
    "m multirun sweep tune optimize": (SWEEPS,),
    "download fetch": ("python -m lsgd.prepare DATASET prepares a dataset",),
    # torchrun, mpirun, Slurm.
    "n np nproc nprocs nproc-per-node num-processes world-size ntasks": (
        "--np", "--processes", PROCESSES,
    ),
    "gpus gpu ngpus num-gpus devices": ("--gpus", "--np", "gpus=", PROCESSES),
    "nodes nnodes num-nodes": (
        "--nodes", "nodes=", "python -m lsgd.launch slurm NAME --nodes N takes N machines",
    ),
    "local-rank rank node-rank": (f"the launcher sets the ranks; {PROCESSES}",),
    "launcher torchrun horovodrun mpirun slurm ray k8s": (
        "--launch", "python -m lsgd.launch LAUNCHER NAME starts a recipe by a launcher",
    ),
    "backend dist-backend": ("comm=",),
    # Hydra, timm, Lightning, and the scripts of PyTorch.
    "recipe r config c config-name config-file config-path": (
        "recipe=", "a recipe is written by its name alone, such as digits, or its path",
    ),
    "epoch max-epochs num-epochs": ("epochs=",),
    "b bs batch batchsize batch-size": (
        "worker_batch=N and workers=K, whose product is the minibatch",
    ),
    "lr learning-rate base-lr": (
        "schedule.reference_lr=LR, from which the lr is scaled to the minibatch",
    ),
    "scheduler sched lr-scheduler lr-schedule": ("schedule=",),
    "opt optimizer": ("optim=",),
    "wd": ("optim.weight_decay=",),
    "arch a net": ("model=",),
    "data data-dir data-path data-root": (
        "data.root=FOLDER for the folder of a dataset, and data=NAME for the dataset",
    ),
    "dataset": ("data=",),
    "workers num-workers j": (
        "inputs.decoders=N for processes that decode images; workers=K is for the minibatch",
        "--jobs",
    ),
    "amp bf16": ("precision=bfloat16",),
    "fp16 half": ("precision=float16",),
    "cpu no-cuda": ("device=cpu",),
    "cuda": ("device=cuda",),
    "log-interval print-freq": ("log_steps=",),
    "multi-label multilabel multi-target": (
        "an image has one label, the class of its folder; several labels are not supported",
    ),
    "class-weights class-weight weighted-sampler": (
        "data.balance=", "data.balance=weights or data.balance=sampler balances the classes",
    ),
    "in-chans in-channels num-channels grayscale greyscale": ("data.channels=",),
    "crop-pct": ("data.crop_ratio=",),
    "wandb": ("trackers=[wandb]",),
    "mlflow": ("trackers=[mlflow]",),
    "n-trials max-trials": ("trials=",),
}  # fmt: skip
"""The equivalents here of words of other tools, in order of preference.

The first is used that the command has: an option, an override or a sentence, which fits any
command.
"""

_FORMS = {name: forms for names, forms in FOREIGN_EQUIVALENTS.items() for name in names.split()}


def misspelled(word: str, known: Sequence[str]) -> list[str]:
    """Return the known name of which an unknown word is a misspelling, if there is one."""
    return difflib.get_close_matches(word, known, n=1, cutoff=0.85)


def did_you_mean(word: str, known: Sequence[str], remedy: str = "see --help") -> str:
    """Return the suggestion for an unknown word: near names, all names if few, or the remedy."""
    near = misspelled(word, known) or difflib.get_close_matches(word, known, n=3, cutoff=0.55)
    near = near or [name for name in known if word and word in name][:3]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"write one of {', '.join(known)}" if len(known) < MAX_LISTED_NAMES else remedy


def exact_equivalent(
    word: str, value: str = "", *, options: Collection[str] = (), keys: Collection[str] = ()
) -> str:
    """Return a hint with what a word of another tool is here, or a key's end; empty for others.

    >>> exact_equivalent("bs", keys=["worker_batch"])
    'write worker_batch=N and workers=K, whose product is the minibatch'
    >>> exact_equivalent("momentum", "0.8", keys=["optim.momentum"])
    'write optim.momentum=0.8'
    >>> exact_equivalent("momentun", keys=["optim.momentum"])
    ''
    """
    name = _dashed(word)
    for form in _FORMS.get(name, ()):
        first = form.split()[0]
        key, equals, _ = first.partition("=")
        if first in options:
            return f"write {form} {value}".rstrip()
        if equals and key in keys:
            return f"write {form}{value or '…'}" if form.endswith("=") else f"write {form}"
        if not equals and not first.startswith("-"):
            return form
    whole = [key for key in keys if key.replace("_", "-") == name]
    ends = [key for key in keys if key.rpartition(".")[2].replace("_", "-") == name]
    match whole or ends:
        case [key]:
            return f"write {key}={value or '…'}"
    return ""


def _dashed(word: str) -> str:
    return word.lstrip("-").replace("_", "-").lower()


def suggest_equivalent(
    word: str, value: str = "", *, options: Collection[str] = (), keys: Collection[str] = ()
) -> str:
    """Return a hint for an unknown command-line word: its equivalent in lsgd, or near names.

    The word may be an option of another tool, with dashes, and have a `value`. The hint uses these
    options of the command, and the keys of its overrides. It is empty if nothing is near.

    >>> suggest_equivalent("--max-epochs", "30", keys=["epochs"])
    'write epochs=30'
    >>> suggest_equivalent("--dry-run", options=["--print"])
    'write --print'
    >>> suggest_equivalent("--weight-decay", "1e-4", keys=["optim.weight_decay"])
    'write optim.weight_decay=1e-4'
    """
    name = _dashed(word)
    if exact := exact_equivalent(word, value, options=options, keys=keys):
        return exact
    pairs = [(option.lstrip("-"), option) for option in sorted(options)]
    pairs += [(key.rpartition(".")[2].replace("_", "-"), f"{key}=") for key in keys]
    near = difflib.get_close_matches(name, [end for end, _ in pairs], n=2, cutoff=0.7)
    # The parser does not complete options, so a prefix of one is answered with it.
    near = near or [
        option[2:] for option in options if len(name) > 2 and option[2:].startswith(name)
    ]
    texts = [text for end, text in pairs if end in near]
    return f"did you mean {' or '.join(texts)}?" if texts else ""
