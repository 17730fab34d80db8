"""The Slurm launcher, which makes the batch script for sbatch.

A requeued job resumes in its run folder and appends to its logs.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.options import Request
from lsgd.launch.processes import GPUS, count_processes, gpus_per_machine, python
from lsgd.launch.quoting import sbatch_line, shell_line
from lsgd.launch.sbatch_options import (
    FLAGS,
    OPTIONAL,
    SIGNAL_BEFORE,
    VALUED,
    gres_gpus,
    seconds_before_limit,
    time_limit,
)
from lsgd.override_syntax import ADDED, PATH_FIELDS, last_text
from lsgd.paths import OWN_RECIPES, local_path, path_in_variable

BATCH = """\
#!/usr/bin/env bash
{options}

{run}
echo "job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"
mkdir -p "$run_dir/logs"
# For `lsgd launch --status`.
cat > "$run_dir/{job_file}" <<JOB
{job}
JOB
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
if ((code == 75)); then scontrol requeue "{job_id}"; fi
exit $code"""

PROGRAM = """\
#!/usr/bin/env bash
{options}

{before}echo "job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"
{program} -- \\
    {step}
code=$?
# Stopped by a signal, such as USR2 before the time limit, with all its work saved: to be continued.
if ((code == 75)); then scontrol requeue "{job_id}"; fi
exit $code"""

JOB_FILE = "logs/job.json"
"""The file in a run folder that names the Slurm job of the last start, its nodes and its logs."""
PATTERNS = {
    "%j": "$SLURM_JOB_ID",
    "%A": "${SLURM_ARRAY_JOB_ID}",
    "%a": "$SLURM_ARRAY_TASK_ID",
}
"""The patterns in the names of Slurm's log files, and the shell variables of the same value."""
JOB_ID = PATTERNS["%j"]
ARRAY_TASK_ID = f"{PATTERNS['%A']}_{PATTERNS['%a']}"
"""The id of a job of an array, for a shell.

For one of them SLURM_JOB_ID is the array's, by which scontrol would requeue all jobs of the array.
"""

PLACE_OPTIONS = (
    *("--partition", "--account", "--qos", "--reservation", "--constraint", "--exclude"),
    *("--clusters", "--cluster-constraint", "--licenses", "--wckey", "--comment", "--mcs-label"),
    *("--setup", "--container", "--mount"),
)
"""The options that say where and for whom a job runs and with what software, whatever it computes.

A site may ask for any of them of every job. The others are resources, or of the array alone.
"""


def slurm(request: Request) -> LaunchCommand:
    """Return the sbatch command and batch script of a job on whole machines or on some cores."""
    options = request.options
    folder = _folder(request)
    arguments = request.train_arguments
    suffix = "" if request.run_dir else ' "run_dir=$run_dir"'
    if advice := cores_advice(options):
        print(f"lsgd: {advice}", file=sys.stderr)
    if "--array" in options:
        if request.path_of("seed"):
            raise UsageError(
                f"seed={request.path_of('seed')} contradicts --array, whose numbers are the seeds; "
                "leave out one of them"
            )
        for first, last in re.findall(r"(\d+)-(\d+)", options["--array"]):
            if int(first) > int(last):
                raise UsageError(
                    f"--array {options['--array']} must not have {first}-{last}, which has no "
                    f"seed; write {last}-{first}"
                )
        arguments = [word for word in arguments if not re.match(r"\+*run_dir=", word)]
        suffix = ' "seed=$SLURM_ARRAY_TASK_ID" "run_dir=$run_dir"'
    job_id = ARRAY_TASK_ID if "--array" in options else JOB_ID
    text = BATCH.format(
        options=_job_options(request.job_name, f"{folder}.log", options),
        run=f"{_environment(options)}run_dir={_expanded(shell_line([folder]))}",
        job_file=JOB_FILE,
        job=_job_record(folder, f"{folder}.log", job_id, options),
        srun=shell_line(_srun(options, [request])),
        train=f"{_train_line(options, arguments)}{suffix}",
        job_id=job_id,
    )
    return LaunchCommand(
        request,
        count_processes("slurm", options),
        ["sbatch"],
        "sbatch",
        "on a machine without Slurm, use local, mpirun or torchrun",
        text,
        os.path.dirname(folder),
    )


def slurm_array(requests: Sequence[Request], name: str, log: str, at_once: int | None) -> str:
    """Return the batch script of an array of jobs, one for each request, `at_once` at a time.

    The requests have the same options and a run folder each; the number of a request in the
    sequence is that of its job in the array. `log` is the name of the jobs' log files, with the
    patterns %A and %a.
    """
    options = requests[0].options
    cases = []
    for number, request in enumerate(requests):
        _folder(request)  # refuses names that Slurm does not take literally
        train = _train_line(options, request.train_arguments)
        cases.append(f"{number}) run_dir={shell_line([request.run_dir])} train=({train}) ;;")
    indexes = f"0-{len(requests) - 1}" + (f"%{at_once}" if at_once else "")
    return BATCH.format(
        options=_job_options(name, log, {**options, "--array": indexes}),
        run="\n".join([f"{_environment(options)}case $SLURM_ARRAY_TASK_ID in", *cases, "esac"]),
        job_file=JOB_FILE,
        job=_job_record(requests[0].run_dir, log, ARRAY_TASK_ID, options),
        srun=shell_line(_srun(options, requests)),
        train='"${train[@]}"',
        job_id=ARRAY_TASK_ID,
    )


def slurm_program_array(
    request: Request, arguments: Sequence[str], name: str, log: str, indexes: str
) -> str:
    """Return the batch script of an array of jobs of `python ARGUMENTS`, which starts training.

    The program runs once in each job, outside of any container. After its arguments and `--` it
    gets the command of a job step that trains on the nodes, GPUs and processes of the request's
    options, up to the overrides of lsgd.train. `indexes` is the value of --array.
    """
    options = request.options
    train = _train_line(options, ["-m", "lsgd.train"])
    return PROGRAM.format(
        options=_job_options(name, log, {**options, "--array": indexes}),
        before=_environment(options),
        program=shell_line([python(), *arguments]),
        step=f"{shell_line(_srun(options, [request]))} {train}",
        job_id=ARRAY_TASK_ID,
    )


def slurm_task(options: Mapping[str, str], arguments: Sequence[str], name: str, log: str) -> str:
    """Return the batch script of a job of one process without GPUs: `python ARGUMENTS`.

    Of the options only those of PLACE_OPTIONS count, and the time limit. A container sees the
    current folder and those of LSGD_DATA, LSGD_RECIPES, --mount and the study's or search's file.
    """
    kept = {key: value for key, value in options.items() if key in PLACE_OPTIONS}
    if "*" in kept.get("--constraint", ""):  # numbers of nodes, of which this job has one
        del kept["--constraint"]
    lines = _option_lines(
        {
            **{"--job-name": name, "--nodes": "1", "--ntasks": "1"},
            **({"--time": options["--time"]} if "--time" in options else {}),
            "--output": log,
        },
        kept,
    )
    command = _train_line(kept, arguments)
    own = [text for key in ADDED if (text := last_text(arguments, key))]
    srun = shell_line(["srun", *_container(kept, [], own)]) + " " if "--container" in kept else ""
    return f"#!/usr/bin/env bash\n{lines}\n\n{_environment(kept)}exec {srun}{command}"


def _folder(request: Request) -> str:
    """Return the run folder of a Slurm job, next to which Slurm writes the job's log.

    Raises UsageError for a folder without a name that the log could have, and for what Slurm does
    not take literally in the name of a file: % begins one of its patterns, a backslash disables all
    of them, and no quotes hold a control character.
    """
    for name, value in (("run_dir", request.run_dir), ("recipe", request.recipe)):
        if not value.isprintable() or re.search(r"[%\\]", value):
            raise UsageError(
                f"{name}={value!r} has %, a backslash or a control character, which Slurm does "
                "not take literally in file names; write another"
            )
    # Without a slash at the end, after which the log would be a file .log in the folder.
    named = str(Path(request.run_dir)) if request.run_dir else ""
    if named.startswith("-"):  # mkdir of the job would take it for options
        named = f"./{named}"
    if named and Path(named).name in ("", ".."):
        raise UsageError(
            f"run_dir={request.run_dir} must end in a name, since Slurm writes the log beside the "
            "folder as NAME.log; write such as run_dir=runs/a"
        )
    if request.is_check:  # its logs are not those of the run
        if "--array" in request.options:
            raise UsageError(
                f"--array {request.options['--array']} is a job for each seed, and --check needs "
                "one job; leave out --array"
            )
        return f"{named or f'runs/{request.job_name}/slurm'}-check-%j"
    # A requeued job keeps its number, %j.
    if "--array" in request.options:
        return f"{named or f'runs/{request.job_name}/slurm-%A'}-seed%a"
    return named or f"runs/{request.job_name}/slurm-%j"


def _expanded(text: str) -> str:
    """Return a text for a shell with the shell's variables in place of Slurm's patterns."""
    return re.sub("%[jAa]", lambda found: PATTERNS[found[0]], text)


def write_job_record(folder: Path, log: Path) -> None:
    """Write the job's file into the folder of a run that a step of this process's job trains."""
    job, task = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID")
    record = {
        "job": f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}" if task else job,
        "nodes": os.environ.get("SLURM_JOB_NODELIST", ""),
        "start": int(os.environ.get("SLURM_RESTART_COUNT", 0)) + 1,
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
        "log": os.path.relpath(log, folder),
        "process_logs": "",
    }
    (folder / JOB_FILE).parent.mkdir(parents=True, exist_ok=True)
    (folder / JOB_FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")


def _job_record(folder: str, log: str, job_id: str, options: Mapping[str, str]) -> str:
    """Return the job file's JSON for a here-document, with paths relative to the run folder."""
    # sbatch reads both variables.
    variables = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
    if "--clusters" in options or any(map(os.environ.get, variables)):
        job_id += ";$SLURM_CLUSTER_NAME"
    path = re.sub(r"[$`\\]", r"\\\g<0>", json.dumps(os.path.relpath(log, folder)))
    return (
        f'{{"job": "{job_id}", "nodes": "$SLURM_JOB_NODELIST", '
        '"start": $((${SLURM_RESTART_COUNT:-0} + 1)), "began": "$(date -Is)", '
        f'"log": {_expanded(path)}, "process_logs": "logs/rank*.log"}}'
    )


def _environment(options: Mapping[str, str]) -> str:
    """Return the lines that read the file of --setup and pass all variables on to srun's processes.

    Raises UsageError if the file does not exist, or is no bash.
    """
    # sbatch --export=NONE sets NONE, and srun's processes would lack all that this script has.
    is_limited = "--export" in options or os.environ.get("SBATCH_EXPORT")
    lines = "export SLURM_EXPORT_ENV=ALL\n" if is_limited or "--setup" in options else ""
    if "--setup" not in options:
        return lines
    path = os.path.abspath(local_path(options["--setup"]))
    if not os.path.isfile(path):
        raise UsageError(f"--setup {options['--setup']} is not a file; write the path of one")
    checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    if checked.returncode:
        raise UsageError(f"--setup: {checked.stderr.strip().splitlines()[0]}; correct that line")
    # The file may end the script itself, also with 0; a trap of its own may be for the job's end.
    ended = 'echo "lsgd: --setup ended the job by exit or an error; write return in place of exit"'
    failed = '{ is_set_up=1; echo "lsgd: the last command of --setup failed"; exit 1; }'
    return (
        f"{lines}is_set_up=\ntrap '((is_set_up)) || {{ {ended}; exit 1; }}' EXIT\n"
        f"source {shell_line([path])} || {failed}\n"
        # Else its settings would end this script at the first command that fails, such as srun.
        "is_set_up=1\nset +Ceu\ntrap - ERR\n"
    )


def _train_line(options: Mapping[str, str], arguments: Sequence[str]) -> str:
    return shell_line(["python3" if "--container" in options else python(), *arguments])


def _resources(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of sbatch that request nodes, processes, GPUs, cores and memory.

    A job on one node with fewer GPUs than a whole node has shares it with others, unless the
    options say otherwise, and so does one with a number of cores.
    """
    nodes, gpus = options.get("--nodes", "1"), gpus_per_machine("slurm", options)
    found = {"--nodes": nodes}
    if gpus is None:
        found["--ntasks"] = options.get("--np", "1")
    else:
        found["--ntasks-per-node"] = str(gpus)
        if gres_gpus(options) is None:
            found["--gpus-per-node"] = str(gpus)
    if "--cpus" in options:
        found["--cpus-per-task"] = options["--cpus"]
    if whole := _has_whole_nodes(options):
        found["--exclusive"] = ""
    # Otherwise the job on a whole machine gets the queue's default memory, which may be little.
    elsewhere = options.keys() & {"--mem-per-cpu", "--mem-per-gpu"}
    if memory := options.get("--mem", "0" if whole and not elsewhere else ""):
        found["--mem"] = memory
    if "--time" in options:
        limit, before = time_limit(options["--time"]), seconds_before_limit(options)
        if limit is not None and limit <= before:
            raise UsageError(
                f"--time {options['--time']} is {limit} seconds for sbatch, and the processes are "
                f"to save {before} seconds before the end; write more, in minutes or "
                "hours:minutes:seconds"
            )
        found["--time"] = options["--time"]
    return found


def _has_whole_nodes(options: Mapping[str, str]) -> bool:
    """Return whether no other job runs on the nodes of this one."""
    if "--exclusive" in options:  # or else exclusive to the jobs of a user, or of a label
        return options["--exclusive"] in ("", "topo")
    gpus = gpus_per_machine("slurm", options)
    is_part = gpus is not None and options.get("--nodes", "1") == "1" and gpus < GPUS
    return not (is_part or options.keys() & {"--cpus", "--oversubscribe"})


def cores_advice(options: Mapping[str, str]) -> str:
    """Return what to add for more than one core per process on a shared node, or an empty string.

    By Slurm's default a task has one core, which decodes too few images for a GPU.
    """
    if _has_whole_nodes(options) or options.keys() & {"--cpus", "--cpus-per-gpu"}:
        return ""
    return (
        "the job shares its nodes with others, and Slurm gives each of its processes one core "
        "unless the partition has another default; add --cpus 12, cores per process, or --exclusive"
    )


def _job_options(name: str, log: str, options: Mapping[str, str]) -> str:
    """Return the #SBATCH lines of a job that trains: its name, its log, and what it requests."""
    own = {"--job-name": name, **_resources(options), "--output": log}
    return _option_lines(own, options)


def _option_lines(own: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Return the #SBATCH lines: lsgd's own options, and those that sbatch gets unchanged."""
    lines = {**own, "--open-mode": "append", "--requeue": "", "--signal": f"USR2@{SIGNAL_BEFORE}"}
    passed = {key: value for key, value in options.items() if key in VALUED | FLAGS | OPTIONAL}
    if "--mail" in options:
        passed = {"--mail-user": options["--mail"], "--mail-type": "END,FAIL,REQUEUE", **passed}
    if "--no-requeue" in passed:
        del lines["--requeue"]
    lines.update(passed)
    return "\n".join(
        sbatch_line(f"{name}={value}" if value else name) for name, value in lines.items()
    )


def _srun(options: Mapping[str, str], requests: Sequence[Request]) -> list[str]:
    # Bound to one core each, processes would have one thread. So they may use all cores of the job
    # on their machine, and lsgd divides these into threads per process.
    srun = ["srun", "--cpu-bind=none"]
    if "--cpus" in options:
        srun += [f"--cpus-per-task={options['--cpus']}"]
    # When a process has died, the others have 15 s to report and to exit.
    srun += ["--kill-on-bad-exit=0", "--wait=15", "--open-mode=append"]
    return srun + _container(options, requests, [request.recipe for request in requests])


def _container(
    options: Mapping[str, str], requests: Sequence[Request], own: Sequence[str]
) -> list[str]:
    """Return srun's options for a container, with the folders that it sees; none without one.

    `own` are the names or paths of recipes, studies and searches that the container reads.
    """
    if "--container" not in options:
        if "--mount" in options:
            raise UsageError(
                f"--mount {options['--mount']} adds folders to a container; write --container "
                "IMAGE too, or leave it out"
            )
        return []
    # The folder as the shell names it, since overrides may contain it with unresolved links.
    folder = os.environ.get("PWD", "")
    if not (os.path.exists(folder) and os.path.samefile(folder, ".")):
        folder = os.getcwd()
    named = [(key, _seen_path(request, key)) for request in requests for key in PATH_FIELDS]
    named += [("run_dir", "runs"), ("LSGD_DATA", path_in_variable("LSGD_DATA", "data"))]
    named += _own_folders(own)
    mounts = {folder: "the current folder"}
    for key, path in named:
        path = os.path.normpath(os.path.join(folder, path))
        if f"{path}/".startswith(f"{folder}/"):
            # It is mounted with the folder, unless a link there leads out of it.
            path = _linked_path(Path(path), Path(folder))
        # data.stage may have a variable of the node, whose folder --mount gives.
        if path and "$" not in path:
            mounts.setdefault(path, key)
    for path, key in mounts.items():
        if re.search(r"[,:\s]", path):
            raise UsageError(
                f"{key}={path!r} has whitespace, a comma or a colon, which would change the mounts "
                "of --container; use another path"
            )
    pairs = [f"{path}:{path}" for path in mounts]
    pairs += [each for each in options.get("--mount", "").split(",") if each]
    # A variable of the image, such as LSGD_DATA in lsgd's own, otherwise hides that of the job.
    kept = ["--container-env=LSGD_DATA"] if os.environ.get("LSGD_DATA") else []
    return [
        f"--container-image={_image(options['--container'])}",
        "--container-mounts=" + ",".join(pairs),
        f"--container-workdir={folder}",
        *kept,
    ]


def _linked_path(path: Path, folder: Path) -> str:
    """Return where the link leads by which a path in a folder leaves it; '' if there is none.

    It is the link's own text: the links on the way from there are not in the container. A link to
    nothing counts as none, since its mount would fail.
    """
    inside = [each for each in (path, *path.parents) if folder in each.parents]
    link = next((each for each in reversed(inside) if os.path.islink(each)), None)
    if link is None or not os.path.exists(link):
        return ""
    there = Path(os.path.normpath(link.parent / os.readlink(link)))
    if folder in (there, *there.parents):
        return _linked_path(there / path.relative_to(link), folder)
    return str(there) if there.exists() else ""


def _seen_path(request: Request, key: str) -> str:
    """Return the file or folder of a path field that the job's container has to see, or ''."""
    path = request.path_of(key)
    if key != "run_dir":
        return path
    # Each job of an array has a folder of its own beside this one. A check writes none, and a mount
    # of a folder that does not exist would fail.
    if "--array" in request.options:
        if (parent := str(Path(path).parent)) == "/":
            raise UsageError(
                f"run_dir={path} lies in /, which --array would mount with the folders of its jobs "
                "over that of the container; write run_dir=FOLDER/NAME"
            )
        return parent
    return "" if request.is_check and not os.path.isdir(path) else path


def _image(image: str) -> str:
    """Return a container image as pyxis takes it: a file by its absolute path, others unchanged.

    pyxis takes a relative path without ./ for the name of an image in a registry.
    """
    path = local_path(image)
    return os.path.abspath(path) if os.path.isfile(path) else image


def _own_folders(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return LSGD_RECIPES and the folders of those of these files that a user wrote.

    Each has its name for error messages. An image may have further recipes of its own.
    """
    from lsgd.recipe.own_files import find_own_file, own_folder  # it reads the fields of a recipe

    files = {name: find_own_file(name) for name in names}
    folders = [(name, str(file.parent)) for name, file in files.items() if file]
    return [(OWN_RECIPES, str(own_folder() or "")), *folders]
