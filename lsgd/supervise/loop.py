"""The loop around the job: start it, and start it again as long as that helps."""

import argparse
import shutil

from lsgd.errors import Preempted, Refused
from lsgd.supervise.folder import last_step, newest_checkpoint, run_folder
from lsgd.supervise.hosts import answering, placed
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.signals import catch_stop_signals
from lsgd.supervise.start import run_job
from lsgd.supervise.verdict import hopeless


def supervise_job(options: argparse.Namespace) -> int:
    """Start the command until it is done or cannot be helped; return the exit code.

    Raises Refused, having started nothing, if the command names no run folder, or one that holds
    something else or has another supervisor, or if its program is not there.
    """
    folder = run_folder(options.command)
    program = options.command[0]
    if not shutil.which(program):  # before there is a folder for it
        raise Refused(
            f"{program} cannot be started: it is no program here; look at its path, and at its "
            "right to be executed"
        )
    with open_logbook(folder) as logbook:
        signals = catch_stop_signals()
        deaths = restarts = lost = 0
        last = None
        while True:
            hosts = answering(options.hosts)
            slots = options.processes or sum(hosts.values())
            size = max(slots - lost, options.min_processes) if slots else None
            command = placed(options.command, size, hosts)
            before = newest_checkpoint(folder)
            if len(hosts) < len(options.hosts):
                logbook.say("hosts", f"no answer from {', '.join(options.hosts.keys() - hosts)}")
            logbook.say("start", f"starts {' '.join(command)}", processes=size, command=command)
            ending = run_job(
                command, logbook, signals, silence=options.silence, grace=options.grace
            )
            saved = newest_checkpoint(folder) != before
            step = last_step(folder)
            logbook.say("end", f"{ending.cause}, after step {step}", step=step, code=ending.code)
            if ending.code == 0:
                return 0
            preempted = ending.code == Preempted.exit_code
            if signals:
                return ending.code if preempted else 128 + signals[-1]
            deaths = 0 if saved or preempted else deaths + 1
            reason = hopeless(ending, deaths, again=ending.code == last and not saved)
            if not reason and restarts == options.restarts:
                reason = f"--restarts {restarts} are used up"
            if reason:
                logbook.say("given up", f"not started again: {reason}")
                return ending.code
            restarts += 1
            last = ending.code
            if ending.lost and size and size > options.min_processes:
                lost += 1
