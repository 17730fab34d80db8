"""Supervise a run: start any launch command, and restart the job when it fails.

    python -m lsgd.supervise python -m lsgd.launch horovodrun bs8k run_dir=runs/a --np 8
    python -m lsgd.supervise -- mpirun -np 8 python -m lsgd.train recipe=bs8k run_dir=runs/a
    python -m lsgd.supervise --processes 8 python -m lsgd.launch torchrun bs8k run_dir=runs/a \\
        --np {np}
    python -m lsgd.supervise python -m lsgd.launch singly digits run_dir=runs/a --np 4
    python -m lsgd.supervise --hosts a:8,b:8 python -m lsgd.launch mpirun bs8k run_dir=runs/a \\
        --hosts {hosts} --np {np}

Nothing in a running job is elastic, except under lsgd's own launchers, which restart single
processes (`lsgd.supervise.restarts`). When one of the job's processes dies, the others are stopped
within 15 seconds, and the whole job restarts from its newest checkpoint. The workers of lsgd are
virtual, so fewer processes make the same run: kn, lr, n of BN and the order of examples do not
change.

The command decides whether fewer processes are started. A number written there is kept, which suits
processes that crash on a sound machine. `{np}` stands for a number that begins as --processes and
drops by one with each process that dies, until the supervisor is started anew. With --hosts it
begins as the sum of their processes, and `{hosts}` stands for the hosts that answer on ssh's port
when the job starts: a lost machine is left out, and takes part again once it answers.

The dead processes themselves report why they ended (`lsgd.job.members`), since launchers turn most
exit codes into 1. The first death counts, as it drags the others along:

    2 refused, 3 diverged       a restart would end the same way: give up
    4 an input failed           restart, as a decoding process may have been killed; give up if it
                                happens twice without a new checkpoint between
    6 could not be saved        give up: the disk needs attention
    75 preempted, has saved     restart at once
    130 interrupted             give up
    killed, crashed, 5 a peer lost, the launcher gone
                                restart; give up after 3 times without a new checkpoint

If the supervisor itself is killed, a helper process stops the job on this machine; rerun the same
command to resume. On other machines the launcher has to stop it.
"""

import signal

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""The signals that ask a supervisor to stop."""


def catch_stop_signals() -> list[int]:
    """Catch SIGINT, SIGTERM and the like; return a list to which the received ones are appended.

    Its first entry asks the job to save and exit, and a second one means that it is to be killed.
    So after the first only SIGINT counts, which a person repeats who does not want to wait: a
    terminal that is closed may send SIGHUP twice, and a scheduler SIGUSR1 and then SIGTERM.
    """
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        if number == signal.SIGINT or not received:
            received.append(number)

    for number in (signal.Signals[name] for name in STOP_SIGNALS):
        # nohup sets SIGHUP to be ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    return received
