"""A push and a pull at LeNet-5's size, over our connections and by Ray's object store.

    python results/2026-11-23-live/against_ray.py

prints the table of the README beside it and keeps all milliseconds in against_ray.json. Workers
push a gradient of 61,706 float32 numbers to a server and get the parameters back, each in a process
of its own on this machine. Over ours the server has a thread and a connection for each worker, as
strategy.order=live has them; with Ray it is an actor whose method workers call with a numpy array,
which comes and goes by the object store, as in Ray's own example of a parameter server. Both do the
same update. They take turns, round by round.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from lsgd.comm import joined
from lsgd.recipe import CommSettings
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
NUMBERS, PUSHES, ROUNDS = 61_706, 200, 3
WORKERS = (1, 2, 4)


def ours(out: Path) -> None:
    """A process of a job, of which the last is the server; process 0 keeps its times."""
    torch.set_num_threads(1)
    with joined(CommSettings(), torch.device("cpu")) as comm:
        workers = range(comm.world_size - 1)
        if comm.rank in workers:
            [pair] = comm.open_pairs([(str(comm.rank), 1)])
            gradient, parameters, times = torch.ones(NUMBERS), torch.empty(NUMBERS), []
            comm.gather_objects(None)
            for _ in range(PUSHES):
                began = time.perf_counter()
                pair.send(gradient)
                pair.receive(parameters)
                times.append(time.perf_counter() - began)
            if comm.rank == 0:
                out.write_text(json.dumps(times))
        else:
            pairs = comm.open_pairs([(str(worker), 0) for worker in workers])
            parameters, lock = torch.zeros(NUMBERS), threading.Lock()

            def serve(pair):
                gradient = torch.empty(NUMBERS)
                for _ in range(PUSHES):
                    pair.receive(gradient)
                    with lock:
                        parameters.add_(gradient, alpha=-1e-6)
                        reply = parameters.clone()
                    pair.send(reply)

            threads = [threading.Thread(target=serve, args=(pair,)) for pair in pairs]
            comm.gather_objects(None)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        comm.gather_objects(None)


def by_torchrun(workers: int) -> list[float]:
    """The seconds of worker 0's pushes over our connections."""
    out = HERE / "part.json"
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    subprocess.run(
        [sys.executable, "-m", *torchrun, str(workers + 1), __file__, str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=200,
        check=True,
    )
    times = json.loads(out.read_text())
    out.unlink()
    return times


def main() -> None:
    """Measure both by turns, and report."""
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=10**9,
    )

    @ray.remote(num_cpus=0)
    class Server:
        def __init__(self):
            torch.set_num_threads(1)
            self.parameters = torch.zeros(NUMBERS)

        def step(self, gradient):
            self.parameters.add_(torch.from_numpy(gradient.copy()), alpha=-1e-6)
            return self.parameters.numpy()

    @ray.remote(num_cpus=0)
    class Worker:
        def __init__(self):
            torch.set_num_threads(1)
            self.gradient = np.ones(NUMBERS, np.float32)

        def run(self, server, pushes):
            times = []
            for _ in range(pushes):
                began = time.perf_counter()
                ray.get(server.step.remote(ray.put(self.gradient)))
                times.append(time.perf_counter() - began)
            return times

    kept = {}
    for workers in WORKERS:
        server, actors = Server.remote(), [Worker.remote() for _ in range(workers)]
        ray.get([actor.run.remote(server, 5) for actor in actors])
        times: dict[str, list[list[float]]] = {"ours": [], "Ray": []}
        for _ in range(ROUNDS):
            times["ours"].append(by_torchrun(workers))
            times["Ray"].append(ray.get([actor.run.remote(server, PUSHES) for actor in actors])[0])
        kept[workers] = times
        for actor in (server, *actors):
            ray.kill(actor)
    print(f"ray {ray.__version__}, load {os.getloadavg()[0]:.1f} after\n")
    ray.shutdown()
    (HERE / "against_ray.json").write_text(json.dumps(kept) + "\n")
    rows = []
    for workers, times in kept.items():
        # The first tenth of a round is warm-up.
        all_ = {
            name: np.concatenate([each[PUSHES // 10 :] for each in of])
            for name, of in times.items()
        }
        ratios = [
            median(rays[PUSHES // 10 :]) / median(own[PUSHES // 10 :])
            for own, rays in zip(times["ours"], times["Ray"], strict=True)
        ]
        shown = [
            "{1:.2f} ({0:.2f} to {2:.2f})".format(*1e3 * np.percentile(each, (10, 50, 90)))
            for each in all_.values()
        ]
        rows.append(
            [str(workers), *shown, f"{median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"]
        )
    print(markdown_table(["workers", "ours, ms", "Ray, ms", "Ray / ours"], rows))


if __name__ == "__main__":
    if sys.argv[1:]:
        ours(Path(sys.argv[1]))
    else:
        main()
