"""Many runs, one table: `python -m lsgd.study` trains the trials of a study and reports on them.

    python -m lsgd.study +study=fashion_table1_warmup                 # one after another
    python -m lsgd.study +study=fashion_table1_warmup --print         # what is done, what would run
    python -m lsgd.study +study=figure1 seeds=[0] --launch slurm --nodes 4   # 11 jobs, 1 to 4 nodes
    python -m lsgd.study +study=digits epochs=10 --np 1 --jobs 2      # words hold for every trial

A trial is one recipe and one seed, in processes of its own, which a launch script starts: launch/
local.sh, or that of --launch, with the options of that script: of the processes and machines that
they ask for, a trial gets no more than it has workers. It lies in
runs/trials/NAME-seedS-FINGERPRINT, beside a .log of what it prints; studies that have a trial in
common find it there done. The report is written to runs/studies/NAME.

The same command goes on where it stopped: what is finished is not trained again, nor what has
diverged, as the same words would diverge again; anything else resumes. A trial that fails is named
at the end, with what it said, and costs no other. Ctrl-C and SIGTERM make the trials save and
leave. Killed itself, the study takes its trials along. Two studies in one folder share the work.

slurm.sh only submits. A study submits what is not queued yet and ends; the same command, once they
are through, writes the report. With k8s.sh there is --print alone: its runs lie in the claim.

exit code 0: every trial is finished; 1: some have failed or diverged; 2: refused; 75: told to stop,
or submitted, and the same command goes on.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NoReturn

from lsgd import config, paths
from lsgd.errors import Preempted, Refused
from lsgd.job.launcher import cores, detect
from lsgd.report import report
from lsgd.report.figures import check_matplotlib
from lsgd.studies import Study
from lsgd.supervise.logbook import Taken, open_logbook
from lsgd.supervise.signals import StopSignals
from lsgd.supervise.start import run_job
from lsgd.trials import Trial, ended, trials

CLUSTERS = ("slurm", "k8s")
"""The launch scripts that return before the run has begun, and take 8 GPUs of a machine unless they
are told otherwise."""


@dataclass(frozen=True)
class Launch:
    """The launch script that starts the trials, and the options it is given."""

    name: str
    options: list[str]

    def command(self, trial: Trial) -> list[str]:
        """What starts the trial, or goes on with it."""
        folder, (_, options) = trial.folder, self.fitted(trial.recipe.workers)
        if self.name == "k8s":
            # Where the claim is mounted; and a name for each, as Kubernetes takes one only once.
            folder = Path("/lsgd") / folder
            name = re.sub("[^a-z0-9]+", "-", trial.folder.name.lower())
            options = [*options, "--name", name]
        # Through bash, as a wheel may lose the permission to execute.
        script = str(paths.launch_dir() / f"{self.name}.sh")
        return [
            "bash", script, trial.recipe.name, *trial.words, f"run_dir={folder}", *options
        ]  # fmt: skip

    def fitted(self, workers: int) -> tuple[int, list[str]]:
        """The processes of a run with so many workers, and the options that ask for these.

        A process without a worker would have nothing to do, and fewer make the same run.
        """
        given, rest = {}, iter(self.options)
        for each in rest:
            option, equals, value = each.partition("=")
            given[option] = value if equals else next(rest, "")
        fewer: dict[str, int] = {}
        if "--gpus" in given or (self.name in CLUSTERS and "--np" not in given):
            nodes, gpus = int(given.get("--nodes", 1)), int(given.get("--gpus", 8))
            asked = nodes * gpus
            gpus = min(gpus, workers)
            nodes = min(nodes, workers // gpus)
            processes = nodes * gpus
            fewer = {"--nodes": nodes, "--gpus": gpus}
        else:
            hosts = [
                int(each.rpartition(":")[2]) for each in given.get("--hosts", "").split(",") if each
            ]
            asked = int(given.get("--np", 0)) or sum(hosts) or default_processes()
            processes = min(asked, workers)
            fewer = {"--np": processes}
            if "--nodes" in given:
                fewer["--nodes"] = min(int(given["--nodes"]), processes)
        if processes == asked:
            return processes, self.options
        given |= {option: str(number) for option, number in fewer.items()}
        return processes, [word for option in given.items() for word in option]

    def check(self) -> None:
        """Raise Refused, in the words of the script, for options that it does not take."""
        script = paths.launch_dir() / f"{self.name}.sh"
        if not script.exists() or self.name == "job":
            known = sorted(each.stem for each in script.parent.glob("*.sh") if each.stem != "job")
            raise Refused(f"--launch {self.name} does not exist; write one of {', '.join(known)}")
        asked = subprocess.run(
            ["bash", script, "RECIPE", *self.options, "--help"], capture_output=True, text=True
        )
        if asked.returncode:
            raise Refused(asked.stderr.strip())


def share_cores(launch: Launch, jobs: int) -> None:
    """Give each of so many trials at a time its part of the threads.

    Each would take as many as this machine has cores otherwise. What the caller has set stays.
    """
    if not any(each.partition("=")[0] in ("--hosts", "--nodes") for each in launch.options):
        processes, _ = launch.fitted(sys.maxsize)
        threads = max(1, cores(detect()) // (jobs * processes))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


@cache
def default_processes() -> int:
    """How many a launch script starts on this machine if it is not told."""
    asked = "import torch; print(torch.cuda.device_count() or 2)"
    python = os.environ.get("PYTHON", sys.executable)
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True).stdout
    return int(said or 2)


@dataclass
class Work:
    """The trials that are to be trained here, and what has become of them so far."""

    launch: Launch
    todo: list[Trial]
    signals: StopSignals
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = deque(enumerate(self.todo, 1))
        self.lock = threading.Lock()
        self.began, self.images = time.monotonic(), self.images_left()

    def train(self, jobs: int) -> None:
        """Train them, so many at a time, until all have ended or somebody asks to stop."""
        with ThreadPoolExecutor(jobs) as pool:
            for ended in [pool.submit(self.take) for _ in range(jobs)]:
                ended.result()

    def take(self) -> None:
        """Train one after another, until none is left."""
        told: set[int] = set()
        while not self.signals.count:
            try:
                number, trial = self.waiting.popleft()
            except IndexError:
                return
            try:
                self.attempt(number, trial)
            except Taken:
                if number not in told:
                    told.add(number)
                    self.say(number, trial, "is being trained by another process; comes later")
                self.waiting.append((number, trial))
                time.sleep(1)
            except (Refused, OSError) as error:
                self.fail(number, trial, str(error))

    def attempt(self, number: int, trial: Trial) -> None:
        """Train what is left of the trial; raises Taken, Refused and OSError."""
        trial.log.parent.mkdir(parents=True, exist_ok=True)
        with (
            trial.log.open("a", encoding="utf-8") as output,
            open_logbook(trial.folder, screen=output, patience=0) as logbook,
        ):
            run = trial.run
            if run and ended(run):
                self.say(number, trial, f"another process has trained it: {run.state}")
                return
            if job := trial.queued:
                raise Refused(f"{job} is to train it; wait for that or cancel it")
            command = self.launch.command(trial)
            begins = f"goes on after epoch {run.epoch}" if run and run.epoch else "starts"
            processes, _ = self.launch.fitted(trial.recipe.workers)
            self.say(number, trial, f"{begins}, processes: {processes}")
            logbook.say("start", shlex.join(command), command=command)
            began = time.monotonic()
            ending = run_job(command, logbook, self.signals, output=output)
            logbook.say("end", ending.cause, code=ending.code)
        taken = duration(time.monotonic() - began)
        run = trial.run
        if run and run.finished:
            error = f"top-1 error {run.error:.2f} %"
            self.say(number, trial, f"{error}, {taken}{self.estimate()}")
        elif self.signals.count:
            self.say(number, trial, f"stopped, {run.state if run else 'before it was saved'}")
        else:
            said = last_line(trial.log)
            self.fail(number, trial, f"exit code {ending.code}, {ending.cause}; {said}")

    def fail(self, number: int, trial: Trial, why: str) -> None:
        """Keep why this one has failed; the others go on."""
        self.failed[str(trial)] = why
        self.say(number, trial, f"failed: {why}")

    def say(self, number: int, trial: Trial, what: str) -> None:
        """One line on the screen."""
        with self.lock:
            now = datetime.now()
            print(f"{now:%H:%M:%S}  {number} of {len(self.todo)}  {trial}: {what}", flush=True)

    def images_left(self) -> int:
        """Training images that the trials, but for the failed, still have to see."""
        return sum(each.images_left for each in self.todo if str(each) not in self.failed)

    def estimate(self) -> str:
        """How long the rest will take if it goes on as fast as until now."""
        left = self.images_left()
        lost = sum(each.images_left for each in self.todo if str(each) in self.failed)
        seen = self.images - left - lost
        if left == 0 or seen <= 0:
            return ""
        return f"; about {duration((time.monotonic() - self.began) * left / seen)} left"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42.4), duration(200), duration(10_000)
    ('42 s', '3 min', '2 h 47 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def last_line(log: Path) -> str:
    """The last thing that was said, and where."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The supervisor's own line says what is known already.
    lines = [line for line in lines if line.strip() and " supervise: " not in line]
    return f"{log} ends: {lines[-1].strip()}" if lines else f"nothing is in {log}"


def submit(launch: Launch, todo: Sequence[Trial], signals: StopSignals) -> dict[str, str]:
    """Put those that are not queued yet into the queue; return what was refused, and why."""
    failed = {}
    for number, trial in enumerate(todo, 1):
        if signals.count:
            break
        try:
            what = submit_one(launch, trial)
        except (Refused, OSError) as error:
            what = failed[str(trial)] = str(error)
        print(f"{number} of {len(todo)}  {trial}: {what}", flush=True)
    return failed


def submit_one(launch: Launch, trial: Trial) -> str:
    """What has become of it, in words; raises Refused and OSError if it is not in the queue."""
    trial.job.parent.mkdir(parents=True, exist_ok=True)
    with trial.job.open("a", encoding="utf-8") as said:
        # The launcher inherits the lock, and writes by itself what it has submitted.
        fcntl.flock(said, fcntl.LOCK_EX)
        if job := trial.queued:
            return f"{job} is queued or running already"
        said.truncate(0)
        command = launch.command(trial)
        done = subprocess.run(command, stdout=said, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Refused(f"exit code {done.returncode}: {done.stderr.strip()}")
        processes, _ = launch.fitted(trial.recipe.workers)
        return f"{trial.job.read_text(encoding='utf-8').strip()}, processes: {processes}"


def show(launch: Launch, everything: Sequence[Trial]) -> None:
    """Print what is done, and the commands for what is not; start nothing."""
    for trial in everything:
        run = trial.run
        print(f"# {trial}: {run.state if run else 'not started'}")
        if not ended(run):
            print(shlex.join(launch.command(trial)))


def report_folder(study: Study, everything: Sequence[Trial]) -> Path:
    """`runs/studies/NAME`; words that change what is computed get a folder of their own."""

    def computed(trials: Sequence[Trial]) -> list[str]:
        return sorted({replace(each.recipe, seed=0).fingerprint for each in trials})

    if computed(everything) == computed(trials(study, [])):
        return Path("runs/studies") / study.name
    digest = hashlib.sha256("".join(computed(everything)).encode()).hexdigest()
    return Path("runs/studies") / f"{study.name}-{digest[:8]}"


def run(study: Study, seeds: Sequence[int], words: Sequence[str], launch: Launch, jobs: int) -> int:
    """Train or submit what is left of these seeds, and report on all; return the exit code."""
    everything = trials(study, words)
    found = [(each, each.run) for each in everything if each.recipe.seed in seeds]
    todo = [each for each, run in found if not ended(run)]
    failed = {
        str(each): run.state for each, run in found if run and ended(run) and not run.finished
    }
    print(f"{study.name}: {len(found)} trials, {len(todo)} to train", flush=True)
    signals = StopSignals()
    if launch.name in CLUSTERS:
        failed |= submit(launch, todo, signals)
        why = f"{launch.name}.sh has submitted the rest; the same command, later, ends the study"
    else:
        work = Work(launch, todo, signals)
        work.train(jobs)
        failed |= work.failed
        why = "stopped; the same command goes on"
    for trial, reason in failed.items():
        print(f"failed: {trial}: {reason}")
    if not signals.count:
        write_report(study, words, everything)
    if any(str(each) not in failed and not ended(each.run) for each in todo):
        print(why)
        return Preempted.exit_code
    return 1 if failed else 0


def write_report(study: Study, words: Sequence[str], everything: Sequence[Trial]) -> None:
    """On whatever there is of the trials; raises Refused if it cannot be written."""
    folders = [each.folder for each in everything if each.folder.is_dir()]
    if not folders:
        return
    out = report_folder(study, everything)
    if out.name != study.name:
        study = replace(study, title=f"{study.title} ({' '.join(words)})")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Two studies may end at once.
    with out.with_name(f".{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = shlex.join(["python", "-m", "lsgd.study", f"+study={study.name}", *words])
        print(f"report: {report(folders, study, out, words, command)}", flush=True)


class CommandLine(argparse.ArgumentParser):
    """The words and options of a study; what it does not know goes to the launch script."""

    def __init__(self) -> None:
        about, _, self.more = (__doc__ or "").partition("\n\n")
        super().__init__(
            prog="python -m lsgd.study",
            usage="python -m lsgd.study +study=NAME [key=value ...] [options]",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--launch",
            metavar="SCRIPT",
            default="local",
            help="which of launch/*.sh starts a trial (default local); options of its own may be "
            "given too, such as --np 8",
        )
        self.add_argument(
            "--jobs",
            type=int,
            metavar="N",
            default=1,
            help="trials at a time (default 1), with so many times fewer threads each",
        )
        self.add_argument(
            "--print",
            action="store_true",
            help="show what is done and the commands of the rest, and start nothing",
        )

    def format_help(self) -> str:
        """With every study, which nothing else has to read."""
        self.epilog = f"{self.more}\nstudies:\n{catalogue()}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Refuse in one sentence what argparse would explain with the usage."""
        raise Refused(f"{message}; --help says what there is")


def catalogue() -> str:
    """Every study with its question, its size and what it takes."""
    lines = []
    for name in config.studies():
        study = config.load_study(name)
        file = paths.recipes_dir() / "study" / f"{name}.yaml"
        takes = [line[2:] for line in file.read_text().splitlines() if "Hardware: " in line]
        size = f"{len(study.entries)} recipes x {len(study.seeds)} seeds"
        lines += [f"  +study={name}", f"    {study.question}", f"    {size}. {' '.join(takes)}"]
    return "\n".join(lines)


def sort_out(rest: Sequence[str]) -> tuple[Study, list[int], list[str], list[str]]:
    """The study, the seeds to train, the words of its trials, the options of the launch script."""
    names, lists, words, options = [], [], [], []
    for each in rest:
        key, _, value = each.partition("=")
        if each.startswith("-"):
            options.append(each)
        elif key.lstrip("+") == "study":
            if not each.startswith("+"):
                raise Refused(f"'{each}' needs a plus sign; write +{each}")
            names.append(value)
        elif key == "seeds":
            lists.append(value)
        elif "=" in each or each.startswith("~"):
            words.append(each)
        elif options and options[-1].startswith("-") and "=" not in options[-1]:
            options.append(each)
        else:
            example = f"+study={each}" if each in config.studies() else "for example epochs=30"
            raise Refused(f"'{each}' is not of the form key=value; write {example}")
    if len(names) != 1:
        raise Refused("which study? Write one, for example +study=digits; --help lists them all")
    study = config.load_study(names[0])
    seeds = study.seeds
    if lists:
        if not re.fullmatch(r"\[\d+(, ?\d+)*\]", lists[-1]):
            raise Refused(f"seeds={lists[-1]} is not a list of numbers; write seeds=[0,1]")
        seeds = [int(each) for each in re.findall(r"\d+", lists[-1])]
        if others := [each for each in seeds if each not in study.seeds]:
            raise Refused(
                f"seeds={lists[-1]} has {others[0]}, and the study has the seeds "
                f"{', '.join(map(str, study.seeds))}; write some of these, or train another with "
                f"python -m lsgd.train +recipe=NAME seed={others[0]}"
            )
    return study, seeds, words, options


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    try:
        options, rest = CommandLine().parse_known_args(argv)
        study, seeds, words, passed_on = sort_out(rest)
        if options.jobs < 1:
            raise Refused(f"--jobs={options.jobs} is not a number of trials; write 1 or more")
        launch = Launch(Path(options.launch).stem, passed_on)
        if launch.name in CLUSTERS and options.jobs > 1:
            raise Refused(
                f"{launch.name}.sh submits all trials, and the cluster decides how many run at a "
                "time; leave out --jobs"
            )
        launch.check()
        os.environ.setdefault("PYTHON", sys.executable)
        if options.print:
            show(launch, [each for each in trials(study, words) if each.recipe.seed in seeds])
            return 0
        if launch.name == "k8s":
            raise Refused(
                "a study does not see what becomes of jobs on Kubernetes, whose runs lie in the "
                "claim; write --print for the commands, and run lsgd.report on the runs"
            )
        # Better now than when all is trained.
        check_matplotlib()
        if options.jobs > 1:
            share_cores(launch, options.jobs)
        return run(study, seeds, words, launch, options.jobs)
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
