from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import learner_after
from helpers.composed import compose_recipe
from helpers.exported import read, trained_learner
from helpers.sparse_row_runs import PLAIN, RUNS

import lsgd.workloads
from lsgd import config
from lsgd.export.__main__ import write
from lsgd.run import checkpoint

pytestmark = pytest.mark.export


def loaded(file: Path) -> tuple[dict, dict]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


@pytest.mark.parametrize("name", ["small_resnet", "lenet5"])
def test_tensors_are_equal_and_say_what_they_are_of(name: str, tmp_path: Path) -> None:
    """Also those that were trained in channels_last, of which the file's form knows nothing."""
    learner = trained_learner(name, tmp_path / "run", "channels_last=true")
    write(read(tmp_path / "run", "safetensors"), "safetensors", tmp_path / "a.safetensors")
    tensors, facts = loaded(tmp_path / "a.safetensors")
    torch.testing.assert_close(tensors, dict(learner.model.state_dict()), rtol=0, atol=0)
    assert facts["format"] == "pt"
    assert facts["recipe"] == learner.recipe.name
    assert facts["fingerprint"] == learner.recipe.fingerprint
    assert (facts["step"], facts["network"]) == ("2", name)


def test_tensors_that_are_shared_or_transposed_are_written(tmp_path: Path) -> None:
    """Such as a decoder's that is the embedding, in a network of one's own."""
    trained_learner("lenet5", tmp_path / "run")
    exported = read(tmp_path / "run", "safetensors")
    network = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    network[1].weight = network[0].weight
    network.register_buffer("table", torch.arange(6.0).view(2, 3).t())
    write(replace(exported, network=network), "safetensors", tmp_path / "a.safetensors")
    tensors, _ = loaded(tmp_path / "a.safetensors")
    torch.testing.assert_close(tensors, dict(network.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("workload", ["language", "tagging", "trees"])
def test_texts_give_their_tensors_too(workload: str, tmp_path: Path) -> None:
    """And the expression that is said to make their network makes it."""
    learner = learner_after(compose_recipe(*RUNS[workload], *PLAIN), 0, 1)
    checkpoint.write(learner.checkpoint(), tmp_path)
    how = write(read(tmp_path, "safetensors"), "safetensors", tmp_path / "a.safetensors")
    tensors, _ = loaded(tmp_path / "a.safetensors")
    torch.testing.assert_close(tensors, dict(learner.model.state_dict()), rtol=0, atol=0)
    (tmp_path / "config.yaml").write_text(config.to_yaml(learner.recipe))
    maker = how.removeprefix("load it: ").partition(".load_state_dict")[0]
    network = eval(maker, {"lsgd": lsgd, "torch": torch, "RUN": tmp_path})
    network.load_state_dict(tensors)
