"""The Slurm launcher, which makes the batch script for sbatch.

A requeued job resumes in its run folder and appends to its logs.
"""

import os
import re
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.options import Request
from lsgd.launch.processes import count_processes, gpus_per_machine, python
from lsgd.launch.quoting import sbatch_line, shell_line
from lsgd.override_syntax import PATH_FIELDS
from lsgd.paths import local_path

BATCH = """\
#!/usr/bin/env bash
{options}

run_dir={run_dir}
echo "job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"
mkdir -p "$run_dir/logs"
log=$run_dir/logs/rank0.log
before=$(stat -c %s "$log" 2>/dev/null)
{srun} "--output=$run_dir/logs/rank%t.log" \\
    {train}
code=$?
if ((code == 0)) && [[ $(stat -c %s "$log" 2>/dev/null) == "$before" ]]; then
    echo "lsgd: srun ended with 0, but process 0 wrote nothing to $log: nothing has trained"
    code=1
fi
# Stopped by a signal, such as USR2 before the time limit, with all its work saved: to be continued.
if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code"""


def slurm(request: Request) -> LaunchCommand:
    """Return the sbatch command and batch script of a job on whole machines or on some cores."""
    options = request.options
    folder = _folder(request)
    train = shell_line(
        ["python3" if "--container" in options else python(), *request.train_arguments]
    )
    text = BATCH.format(
        options="\n".join(map(sbatch_line, _sbatch_options(request, folder))),
        run_dir=shell_line([folder]).replace("slurm-%j", "slurm-$SLURM_JOB_ID"),
        srun=shell_line(_srun(request)),
        train=train if request.run_dir else f'{train} "run_dir=$run_dir"',
    )
    return LaunchCommand(
        request,
        count_processes("slurm", options),
        ["sbatch"],
        "sbatch",
        "on a machine without Slurm, use local, mpirun or torchrun",
        text,
        Path(folder).parent,
    )


def _folder(request: Request) -> str:
    """Return the run folder of a Slurm job, next to which Slurm writes the job's log.

    Raises UsageError for what Slurm does not take literally in the name of a file: % begins one of
    its patterns, a backslash disables all of them, and no quotes hold a control character.
    """
    for name, value in (("run_dir", request.run_dir), ("recipe", request.recipe)):
        if not value.isprintable() or re.search(r"[%\\]", value):
            raise UsageError(
                f"{name}={value!r} has %, a backslash or a control character, which Slurm does "
                "not take literally in file names; write another"
            )
    # A requeued job keeps its number, %j.
    return request.run_dir or f"runs/{request.job_name}/slurm-%j"


def _sbatch_options(request: Request, folder: str) -> list[str]:
    options = request.options
    tasks = [f"--ntasks={options.get('--np')}"]
    if gpus := gpus_per_machine("slurm", options):
        tasks = [f"--ntasks-per-node={gpus}", f"--gpus-per-node={gpus}"]
    cpus = options.get("--cpus")
    return [
        f"--job-name={request.job_name}",
        f"--nodes={options.get('--nodes', 1)}",
        *tasks,
        f"--cpus-per-task={cpus}" if cpus else "--exclusive",
        # Otherwise the job on a whole machine gets the queue's default memory, which may be little.
        *([f"--mem={memory}"] if (memory := options.get("--mem", "" if cpus else "0")) else []),
        *([f"--time={options['--time']}"] if "--time" in options else []),
        f"--output={folder}.log",
        "--open-mode=append",
        "--requeue",
        "--signal=USR2@120",
    ]


def _srun(request: Request) -> list[str]:
    options = request.options
    # Bound to one core each, processes would have one thread. So they may use all cores of the job
    # on their machine, and lsgd divides these into threads per process.
    srun = ["srun", "--cpu-bind=none"]
    if "--cpus" in options:
        srun += [f"--cpus-per-task={options['--cpus']}"]
    # When a process has died, the others have 15 s to report and to exit.
    srun += ["--kill-on-bad-exit=0", "--wait=15", "--open-mode=append"]
    if "--container" in options:
        # The folder as the shell names it, since overrides may contain it with unresolved links.
        folder = os.environ.get("PWD", "")
        if not (os.path.exists(folder) and os.path.samefile(folder, ".")):
            folder = os.getcwd()
        named = {key: request.path_of(key) for key in PATH_FIELDS}
        named["LSGD_DATA"] = local_path(os.environ.get("LSGD_DATA", ""))
        for key, path in (*named.items(), ("the current folder", folder)):
            if re.search("[,:]", path):
                raise UsageError(
                    f"{key}={path!r} has a comma or a colon, which would change the mounts of "
                    "--container; use another path"
                )
        outside = [os.path.normpath(os.path.join(folder, path)) for path in named.values() if path]
        # Paths inside the folder are mounted with it.
        mounts = [folder, *(path for path in outside if not f"{path}/".startswith(f"{folder}/"))]
        srun += [
            f"--container-image={options['--container']}",
            "--container-mounts=" + ",".join(f"{path}:{path}" for path in dict.fromkeys(mounts)),
            f"--container-workdir={folder}",
        ]
    return srun
