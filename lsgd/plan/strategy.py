"""The command line `python -m lsgd.plan strategy`: a comparison of strategies by throughput."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.files import create_output_folder
from lsgd.job.command import seconds
from lsgd.plan import measured_step
from lsgd.plan.gradients import parameter_sizes
from lsgd.plan.processes import check_plannable
from lsgd.plan.table import plotter, write_plan
from lsgd.plan.throughput import STEPS, StrategyThroughput, simulate_throughput
from lsgd.recipe import Recipe, StrategySettings
from lsgd.recipe.checks import check_constant_batch, check_supported
from lsgd.recipe_parser import RecipeParser
from lsgd.strategy.placement import PLACEMENTS, elements, place
from lsgd.tables import markdown_table

ABOUT = """\
Predict which strategy trains fastest on a cluster: all-reduce, synchronous servers, backup workers,
bounded staleness or asynchronous servers, and which placement of the servers is best. The tables
show throughput, speed-up and step times over the number of workers; nothing is trained.

  python -m lsgd.plan strategy recipe=fashion_lenet5 workers=16 --step 0.007
                                                     one worker computes 7 ms for its n images
  … --run runs/fashion_lenet5/20261120-152308-seed0  or the step time of a run of one process
  … cluster.server_gbits=1 cluster.worker_gbits=1    on 1 Gbit/s
  … cluster=stragglers                               with stragglers
  … strategy=sync strategy.servers=4 strategy.placement=hash
                                                     with these servers
  … --out plan                                       tables and plot in a new folder

The model is virtual time: workers draw the seconds of their steps, and messages share each
machine's link fairly. An all-reduce waits for the slowest worker and then is a ring, of which the
backward pass hides nothing. Accuracy is not modelled: updates by stale
gradients are worth less.
"""
BACKUP, SLACK = 1, 3
"""The default settings of backup and bounded, for recipes with another strategy."""
MANY = 16
"""The most servers in the table of placements."""
MESSAGES = 30_000
"""The approximate number of simulated messages to servers, if that leaves enough steps."""

ThroughputTable = dict[tuple[int, str], StrategyThroughput]
"""The type of throughputs by number of workers and strategy."""


def plan_strategy(argv: Sequence[str]) -> None:
    """Print the simulated throughput of strategies, and write it to the folder of --out."""
    recipe, options = _command_line().parse(argv)
    remedy = "a short run of it with profile=true shows where its time goes"
    known = ("allreduce", "sync", "backup", "bounded", "async")
    check_supported(recipe, "lsgd.plan strategy", remedy, workloads=("images",), strategies=known)
    check_constant_batch(recipe, "lsgd.plan strategy")
    check_plannable(recipe)
    draw = plotter("draw_paces") if options.out else None
    step, source = options.step, "--step"
    if options.run:
        timed = measured_step.from_run(options.run, recipe)
        step, source = timed.seconds, timed.source
    if step is None:
        raise UsageError(
            f"the time in which a worker computes a step of {recipe.name} is unknown; add --step "
            f"SECONDS for its {recipe.worker_batch} images, or --run FOLDER of a short run of "
            "one process"
        )
    recipe = replace(recipe, cluster=replace(recipe.cluster, step=step))
    with create_output_folder(options.out) as folder:
        sizes = parameter_sizes(recipe)
        paces = simulate_strategies(recipe, sizes)
        text = "\n\n".join(_sections(recipe, sizes, paces, source))
        print(text)
        if folder and draw:
            plots = draw(recipe.name, paces, recipe.worker_batch)
            write_plan(folder, ["strategy", *argv], text, plots)
    if folder:
        print(f"\nkept in {folder}")


def strategies(recipe: Recipe) -> dict[str, StrategySettings]:
    """Return the settings of the parallel-training strategies to compare, by label.

    The recipe's own strategy decides the settings of servers.
    """
    own = recipe.strategy
    backup = own.backup or BACKUP
    slack = own.slack if own.name == "bounded" else SLACK
    local_steps = f", {own.local_steps} local steps" * (own.local_steps > 1)
    servers = replace(own, name="sync", backup=0, slack=0, staleness_aware=False)
    return {
        "allreduce": StrategySettings(),
        "sync": servers,
        f"backup {backup}": replace(servers, name="backup", backup=backup),
        f"bounded {slack}{local_steps}": replace(servers, name="bounded", slack=slack),
        f"async{local_steps}": replace(servers, name="async"),
    }


def simulate_strategies(recipe: Recipe, sizes: Sequence[int]) -> ThroughputTable:
    """Simulate the throughput of each strategy on 1, 2, 4, … workers up to the recipe's number.

    Backup workers count as workers, and at least one worker must not be a backup.
    """
    doubled = [1 << power for power in range(recipe.workers.bit_length())]
    counts = sorted({count for count in doubled if count <= recipe.workers} | {recipe.workers})
    return {
        (workers, name): _pace(recipe, settings, sizes, workers)
        for workers in counts
        for name, settings in strategies(recipe).items()
        if settings.backup < workers
    }


def _pace(
    recipe: Recipe, settings: StrategySettings, sizes: Sequence[int], workers: int
) -> StrategyThroughput:
    if settings.topology == "colocated":
        settings = replace(settings, servers=min(settings.servers, workers))
    steps = max(STEPS // 4, min(STEPS, MESSAGES // (workers * settings.servers)))
    cluster = replace(recipe.cluster, speeds=recipe.cluster.speeds[:workers])
    itemsize = 8 if recipe.precision == "float64" else 4
    # The other strategies refuse compression.
    is_half = recipe.gradient_compression == "fp16" and settings.name in ("allreduce", "sync")
    return simulate_throughput(
        cluster,
        settings,
        sizes,
        workers,
        itemsize=itemsize,
        gradient_itemsize=2 if is_half else itemsize,
        seed=recipe.seed,
        steps=steps,
    )


def _command_line() -> RecipeParser:
    line = RecipeParser(program="lsgd.plan strategy", about=ABOUT)
    line.usage = "python -m lsgd.plan strategy recipe=NAME [key=value ...] [options]"
    step = line.add_mutually_exclusive_group()
    step.add_argument(
        "--step",
        type=seconds,
        metavar="SECONDS",
        help="the seconds in which a worker computes a gradient",
    )
    step.add_argument(
        "--run",
        type=paths.parse_path,
        metavar="FOLDER",
        help="a run of one process, which has this time in its rows",
    )
    line.add_path("--out", "FOLDER", "a new folder for plan.md, plan.png, plan.svg")
    return line


def _sections(
    recipe: Recipe, sizes: Sequence[int], paces: ThroughputTable, source: str
) -> list[str]:
    batch, workers = recipe.worker_batch, recipe.workers
    alone = paces[1, "allreduce"].batches_per_second
    last = {
        name: each.batches_per_second for (count, name), each in paces.items() if count == workers
    }
    best, same = max(last, key=last.__getitem__), max(("allreduce", "sync"), key=last.__getitem__)
    rows = [
        [
            f"{count}",
            name,
            f"{each.batches_per_second * batch:,.0f}",
            f"{each.batches_per_second / alone:.2f}",
            *(f"{1000 * each.quantile(share):.4g}" for share in (0.5, 0.1, 0.9)),
        ]
        for (count, name), each in paces.items()
    ]
    head = ["workers", "strategy", "images/s", "speed-up", "step, ms", "p10", "p90"]
    cluster = asdict(recipe.cluster) | {"step": f"{recipe.cluster.step:.4g}"}
    return [
        f"{recipe.name}: {recipe.model.name}, {sum(sizes):,} parameters, {batch} images for each "
        "worker and step",
        f"**On {workers} workers {best} is the fastest with {last[best] * batch:,.0f} images/s, "
        f"{last[best] / alone:.2f} times one worker alone.** Of the strategies that compute the "
        f"same as one process, {same} is the fastest: {last[same] * batch:,.0f} images/s.",
        f"Servers: {_servers(recipe.strategy)}. A step is the time between updates; with bounded "
        "and async, which make one of each push, between the pushes of a worker. Backup workers "
        "are among the workers. Speed-up is against one worker without any server.",
        markdown_table(head, rows),
        f"Placement of the servers, for {workers} workers; fullest is the largest share of all "
        "bytes on one server:",
        _placements(recipe, sizes),
        "The cluster: " + " ".join(f"cluster.{key}={value}" for key, value in cluster.items()),
        f"cluster.step is the median of a worker's step ({source}). An all-reduce here is a ring "
        "of lsgd.plan.allreduce after the slowest worker's step, with none of it hidden by the "
        "backward pass; servers add up and update in no time. Stale and dropped gradients cost "
        "accuracy, which is not in these numbers.",
    ]


def _placements(recipe: Recipe, sizes: Sequence[int]) -> str:
    many = min(recipe.workers, MANY)
    one = StrategySettings("sync", local_steps=recipe.strategy.local_steps)  # of async
    arms = [one] + [
        replace(one, servers=many, topology=topology, placement=placement)
        for topology in ("central", "colocated")
        for placement in PLACEMENTS
    ]
    rows = []
    for arm in arms:
        slices = place(sizes, arm.servers, arm.placement)
        rates = [
            _pace(recipe, replace(arm, name=name), sizes, recipe.workers).batches_per_second
            for name in ("sync", "async")
        ]
        fullest = f"{max(map(elements, slices)) / sum(sizes):.0%}"
        rows += [[_servers(arm), fullest, *(f"{r * recipe.worker_batch:,.0f}" for r in rates)]]
    return markdown_table(["servers", "fullest", "sync, images/s", "async, images/s"], rows)


def _servers(settings: StrategySettings) -> str:
    if settings.servers == 1:
        return f"1 {settings.topology}"
    return f"{settings.servers} {settings.topology}, {settings.placement}"
