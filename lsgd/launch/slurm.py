"""One Slurm job, as the batch script that sbatch is handed.

A requeued job goes on in its run folder and appends to its logs.
"""

import os
import re
from pathlib import Path

from lsgd.launch.options import Request
from lsgd.launch.processes import count_processes, gpus_per_machine, python
from lsgd.launch.quoting import shell_line
from lsgd.launch.start import Start

PATHS = ("data.root", "data.index", "data.skip_list", "run_dir")
"""The words that name a file or folder which the run reads or writes."""
BATCH = """\
#!/usr/bin/env bash
{options}

run_dir={run_dir}
echo "job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"
mkdir -p "$run_dir/logs"
{srun} "--output=$run_dir/logs/rank%t.log" \\
    {train}
code=$?
# Stopped by a signal, such as USR2 before the time limit, with all its work saved: to be continued.
if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code"""


def slurm(request: Request) -> Start:
    """The job, of whole machines or of some cores of machines."""
    options = request.options
    # A requeue keeps the job's number, %j.
    folder = request.run_dir or f"runs/{request.recipe}/slurm-%j"
    train = shell_line(["python3" if "--container" in options else python(), *request.train])
    text = BATCH.format(
        options="\n".join(f"#SBATCH {option}" for option in _sbatch_options(request, folder)),
        run_dir=shell_line([folder]).replace("slurm-%j", "slurm-$SLURM_JOB_ID"),
        srun=shell_line(_srun(request)),
        train=train if request.run_dir else f'{train} "run_dir=$run_dir"',
    )
    return Start(
        request,
        count_processes("slurm", options),
        ["sbatch"],
        "sbatch",
        "on a machine without Slurm, take local, mpirun or torchrun",
        text,
        Path(folder).parent,
    )


def _sbatch_options(request: Request, folder: str) -> list[str]:
    options = request.options
    tasks = [f"--ntasks={options.get('--np')}"]
    if gpus := gpus_per_machine("slurm", options):
        tasks = [f"--ntasks-per-node={gpus}", f"--gpus-per-node={gpus}"]
    cpus = options.get("--cpus")
    return [
        f"--job-name={request.recipe}",
        f"--nodes={options.get('--nodes', 1)}",
        *tasks,
        f"--cpus-per-task={cpus}" if cpus else "--exclusive",
        # A whole machine has the queue's default of its memory otherwise, which may be little.
        *([f"--mem={memory}"] if (memory := options.get("--mem", "" if cpus else "0")) else []),
        *([f"--time={options['--time']}"] if "--time" in options else []),
        # sbatch reads quotes as a shell does.
        f'--output="{folder}.log"' if re.search(r"[\s']", folder) else f"--output={folder}.log",
        "--open-mode=append",
        "--requeue",
        "--signal=USR2@120",
    ]


def _srun(request: Request) -> list[str]:
    options = request.options
    # Bound to one core each, processes would have one thread; so they may use all cores that the
    # job has on their machine, and lsgd divides its threads among them.
    srun = ["srun", "--cpu-bind=none"]
    if "--cpus" in options:
        srun += [f"--cpus-per-task={options['--cpus']}"]
    # When one has died, the others have 15 s to say why and to leave.
    srun += ["--kill-on-bad-exit=0", "--wait=15", "--open-mode=append"]
    if "--container" in options:
        # The folder as the shell names it: words may name it too, with the links on the way to it.
        folder = os.environ.get("PWD", "")
        if not (os.path.exists(folder) and os.path.samefile(folder, ".")):
            folder = os.getcwd()
        named = [request.value_of(key) for key in PATHS] + [os.environ.get("LSGD_DATA", "")]
        outside = [os.path.normpath(os.path.join(folder, path)) for path in named if path]
        # What lies in the folder is mounted with it.
        mounts = [folder, *(path for path in outside if not f"{path}/".startswith(f"{folder}/"))]
        srun += [
            f"--container-image={options['--container']}",
            "--container-mounts=" + ",".join(f"{path}:{path}" for path in dict.fromkeys(mounts)),
            f"--container-workdir={folder}",
        ]
    return srun
