"""Drawing of the data flow of a training step: `python -m docs.pictures.step`."""

from docs.pictures.svg import WIDTH, Drawing, write
from lsgd.rules import sampler

NAME = "step"
WORKERS, PROCESSES = 8, 3
EDGE = 10.0
WORKER = (WIDTH - 2 * EDGE) / WORKERS
"""The width of a worker, with its share of the gaps."""


def draw() -> str:
    """Return the drawing as SVG: the epoch's order, workers by process, the sum, the update."""
    shares = [sampler.contiguous_share(WORKERS, PROCESSES, rank) for rank in range(PROCESSES)]
    hosted = ", ".join(str(len(share)) for share in shares)
    drawing = Drawing(
        NAME,
        "How the data of a step flows",
        f"A recipe has k workers of n images, here {WORKERS}. The order of an epoch is a function "
        f"of seed and epoch, and step t takes the next kn examples of it, worker w its n of them. "
        f"{PROCESSES} processes host {hosted} workers. The gradients are summed over the "
        "processes and divided by kn, and every process makes the same update.",
    )
    half = (WIDTH - 2 * EDGE - 40) / 2
    for left, head, below in (
        (EDGE, "recipe", "k workers of n images, lr(epoch)"),
        (WIDTH - EDGE - half, "order of epoch e", "a function of (seed, e)"),
    ):
        drawing.box(left, 10, half, 66, "green" if head == "recipe" else "plain")
        drawing.text(left + half / 2, 32, head)
        drawing.text(left + half / 2, 58, below, "small")
    drawing.line((EDGE + half, 43), (WIDTH - EDGE - half - 2, 43), "arrow")
    drawing.text(WIDTH / 2, 106, "step t takes the next kn examples, worker w its n", "small")
    for rank, share in enumerate(shares):
        _draw_process(drawing, rank, share)
    _draw_bar(drawing, 320, "gradients: the sum over processes, divided by kn", "green")
    drawing.line((WIDTH / 2, 366), (WIDTH / 2, 388), "arrow")
    _draw_bar(drawing, 390, "momentum SGD at lr(epoch), the same on each process", "plain")
    return drawing.svg(446)


def _draw_process(drawing: Drawing, rank: int, share: range) -> None:
    left, width = EDGE + WORKER * share.start + 2, WORKER * len(share) - 4
    drawing.box(left, 126, width, 152, "frame")
    for worker in share:
        drawing.box(EDGE + WORKER * worker + 6, 134, WORKER - 12, 62, "amber")
        middle = EDGE + WORKER * (worker + 0.5)
        drawing.text(middle, 152, "worker", "small")
        drawing.text(middle, 178, f"{worker}", "small")
    drawing.text(left + width / 2, 220, f"process {rank}")
    drawing.text(left + width / 2, 250, "BN by worker", "small")
    drawing.line((left + width / 2, 278), (left + width / 2, 318), "arrow")


def _draw_bar(drawing: Drawing, top: float, label: str, kind: str) -> None:
    drawing.box(EDGE, top, WIDTH - 2 * EDGE, 46, kind)
    drawing.text(WIDTH / 2, top + 23, label)


if __name__ == "__main__":
    write(NAME, draw())
