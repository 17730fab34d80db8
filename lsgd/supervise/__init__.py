"""A run that goes on by itself: `python -m lsgd.supervise`, a loop around any launch command.

    python -m lsgd.supervise python -m lsgd.launch horovodrun bs8k run_dir=runs/a --np 8
    python -m lsgd.supervise -- mpirun -np 8 python -m lsgd.train +recipe=bs8k run_dir=runs/a
    python -m lsgd.supervise --processes 8 python -m lsgd.launch torchrun bs8k run_dir=runs/a \\
        --np {np}
    python -m lsgd.supervise python -m lsgd.launch singly digits run_dir=runs/a --np 4
    python -m lsgd.supervise --hosts a:8,b:8 python -m lsgd.launch mpirun bs8k run_dir=runs/a \\
        --hosts {hosts} --np {np}

But under lsgd's own launchers (`lsgd.supervise.lives`), which start a process that dies again by
itself, nothing in a running job is elastic. When one of its processes dies, the rest is stopped
within 15 seconds, and the whole job starts again from its newest checkpoint. The workers of lsgd
are virtual, so fewer processes make the same run: kn, lr, n of BN and the order of examples stay as
they are.

Whether fewer are started is said in the command. A number written there is kept, which suits
processes that crash on a sound machine. Where `{np}` stands, it begins as --processes, and each
process that dies takes one away, until the command is given anew. With --hosts it begins as their
sum, and `{hosts}` stands for those that answer, where ssh does, when the job is started: a machine
that is lost is left out, and one that is back takes part.

What an end means is told by the dead processes themselves (`lsgd.job.members`), since launchers
make 1 of most exit codes. The first that died counts, as it drags the others along:

    2 refused, 3 diverged       the same words would do the same: the end
    4 an input failed           started again, as a decoding process may have been killed; a second
                                time without a new checkpoint between: the end
    6 could not be saved        the end: the disk wants looking after
    75 preempted, has saved     started again at once
    130 interrupted             the end
    killed, crashed, 5 a peer lost, the launcher gone
                                started again; 3 times without a new checkpoint: the end

The supervisor itself may be killed: a helper process notices and stops the job on this machine, and
the same command given again goes on. On other machines the launcher has to do that.
"""
