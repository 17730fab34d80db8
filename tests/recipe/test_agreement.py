"""The fields that must be equal on all processes are all that the sums of a job depend on."""

from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd.config import load_recipe
from lsgd.recipe.agreement import describe_difference, differing_keys, digest, shared_fields


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1"],
        ["label_smoothing=0.1"],
        ["inputs=synthetic"],
        ["strategy=sync"],
        ["strategy=sync", "strategy.servers=2"],
        # Execution fields by which processes send and receive at other steps or in other sizes.
        ["evaluation.every=0.5"],
        ["evaluation.every=7 steps"],
        ["evaluation.sets=[val,other]"],
        ["comm.bucket_mb=1"],
        ["val_batch=100"],
        ["checkpoint_steps=5"],
        ["log_steps=5"],
        ["noise_scale=true"],
        ["profile=true"],
        # The processes time steps together where any field is auto, whichever it is.
        ["hardware=auto"],
        # Its kernels round otherwise, and all processes make the same update.
        ["optim.fused=apex"],
    ],
)
def test_a_field_that_must_be_equal_on_all_processes(words: list[str]) -> None:
    own, other = (shared_fields(compose_recipe("+recipe=digits", *given)) for given in ([], words))
    assert words[-1].partition("=")[0] in [*differing_keys(own, other), "inputs", "strategy"]
    assert digest(own) != digest(other)


@pytest.mark.parametrize(
    "word",
    [
        *("device=cpu", "threads=2", "workers_per_pass=2", "channels_last=true", "numa=true"),
        *("inputs.decoders=1", "inputs=torchvision", "data.root=/elsewhere", "run_dir=runs/other"),
        *("name=other", "checkpoint_minutes=1", "keep_checkpoints=5", "comm=torch", "compile=true"),
        *("comm.timeout=5", "comm.join_timeout=5", "deterministic=false"),
    ],
)
def test_a_field_that_may_differ_between_processes(word: str) -> None:
    own, other = (shared_fields(compose_recipe("+recipe=digits", *given)) for given in ([], [word]))
    assert differing_keys(own, other) == []
    assert digest(own) == digest(other)


def test_machines_with_other_settings_time_the_other_fields_together() -> None:
    """Process 0 decides those that are auto there, and any other process may have a value."""
    recipes = [
        load_recipe(["+recipe=bs256", *words], is_tuned=True) for words in ([], ["threads=4"])
    ]
    own, other = map(shared_fields, recipes)
    assert differing_keys(own, other) == []


def test_an_order_to_replay_is_compared_by_its_content(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file, content in zip(files, (b"one", b"one", b"two"), strict=True):
        file.write_bytes(content)
    words = ["+recipe=digits", "strategy=async"]
    one, same, other = (
        shared_fields(compose_recipe(*words, f"strategy.order={file}")) for file in files
    )
    assert differing_keys(one, same) == []
    assert differing_keys(one, other) == ["strategy.order"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    ours, theirs = {"data.skip": []}, {"data.skip": ["train/a/1.png"] * 99}
    said = describe_difference("data.skip", theirs, ours, "process 1", "process 0")
    assert said.startswith("process 1 has data.skip=['train/a/1.png', ")
    assert "… and process 0 has data.skip=[];" in said
    assert len(said) < 200
