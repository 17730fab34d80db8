"""The TensorBoard events of a run folder, read by TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def reader(run: Path) -> EventAccumulator:
    """Return a TensorBoard reader of a run that keeps all points; Reload() reads new ones."""
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})


def points(run: Path | EventAccumulator) -> dict[str, list[tuple[int, float]]]:
    """Return the points (step, value) of each TensorBoard scalar of a run, by tag."""
    events = (reader(run) if isinstance(run, Path) else run).Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def texts(run: Path) -> dict[str, str]:
    """Return the newest TensorBoard text of a run for each tag."""
    events = reader(run).Reload()
    return {
        tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    }
