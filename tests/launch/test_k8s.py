"""The manifests of Kubernetes."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "launch"


@pytest.mark.kubeflow
@pytest.mark.parametrize("name", ["mpijob", "pytorchjob"])
def test_kubeflow_knows_every_field(name: str) -> None:
    """What its models do not know, they drop."""
    import yaml
    from kubeflow.training import models
    from kubeflow.training.api_client import ApiClient

    manifest = yaml.safe_load((GOLDEN / f"{name}.txt").read_text())
    answer = SimpleNamespace(data=json.dumps(manifest))
    client = ApiClient()
    known = client.deserialize(answer, getattr(models, f"KubeflowOrgV1{manifest['kind']}"))
    assert client.sanitize_for_serialization(known) == manifest


def test_words_arrive_as_they_were_written(printed: Callable[..., str]) -> None:
    """Through YAML's quotes, and past Kubernetes, to which $(NAME) is a variable."""
    yaml = pytest.importorskip("yaml")
    words = ['a="it\'s"', "b=c\\d", "e=$(F)", "g=ä\tö\nü"]
    options = ["--kind", "mpijob", "--image", "i", "--claim", "c"]
    job = yaml.safe_load(printed("k8s", "digits", *words, *options))
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-5:-1] == [word.replace("$(", "$$(") for word in words]
