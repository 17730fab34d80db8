"""The fields in which two recipes differ are all named, those that decide most first."""

from helpers.composed import compose_recipe

from lsgd.recipe import DifferingField, differing_fields


def test_fields_that_decide_what_is_computed_come_first() -> None:
    words = ["+recipe=digits", "run_dir=a"]
    one = compose_recipe(*words)
    other = compose_recipe(
        *words[:1], "run_dir=b", "log_steps=7", "seed=3", "optim.momentum=0.8", "comm.timeout=9"
    )
    assert differing_fields((one, other)) == [
        DifferingField("optim.momentum", (0.9, 0.8), True),
        DifferingField("seed", (0, 3), True),
        DifferingField("comm.timeout", (one.comm.timeout, 9.0), False),
        DifferingField("log_steps", (one.log_steps, 7), False),
    ]
    synthetic = compose_recipe(*words, "inputs=synthetic")
    fields = differing_fields((one, synthetic))
    assert fields[0] == DifferingField("data.synthetic", (False, True), True)
    assert DifferingField("inputs.loader", (one.inputs.loader, "synthetic"), False) in fields
