"""The manifests of Kubernetes."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

GOLDEN = Path(__file__).parent.parent / "golden" / "launch"


@pytest.mark.kubeflow
@pytest.mark.parametrize("name", ["mpijob", "pytorchjob"])
def test_kubeflow_knows_every_field(name: str) -> None:
    """What its models do not know, they drop."""
    from kubeflow.training import models
    from kubeflow.training.api_client import ApiClient

    manifest = yaml.safe_load((GOLDEN / f"{name}.txt").read_text())
    answer = SimpleNamespace(data=json.dumps(manifest))
    client = ApiClient()
    known = client.deserialize(answer, getattr(models, f"KubeflowOrgV1{manifest['kind']}"))
    assert client.sanitize_for_serialization(known) == manifest


def test_words_arrive_as_they_were_written(printed: Callable[..., str]) -> None:
    """Through YAML's quotes, and past Kubernetes, to which $(NAME) is a variable."""
    words = ['a="it\'s"', "b=c\\d", "e=$(F)", "g=ä\tö\nü", "h=$$(I)"]
    options = ["--kind", "mpijob", "--image", "i", "--claim", "c"]
    job = yaml.safe_load(printed("k8s", "digits", *words, *options))
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-6:-1] == [word.replace("$", "$$") for word in words]


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_pod_gets_the_network_card_that_is_named(kind: str, printed: Callable[..., str]) -> None:
    """And may lock the memory that it is to read; only the pods that train."""
    options = ["--kind", kind, "--image", "i", "--claim", "c", "--nodes", "2"]
    plain = yaml.safe_load(printed("k8s", "digits", *options))
    job = yaml.safe_load(printed("k8s", "digits", *options, "--rdma", "rdma/hca"))
    job = json.loads(json.dumps(job))  # so that an alias is a copy
    (replicas,) = (job["spec"][key] for key in job["spec"] if key.endswith("ReplicaSpecs"))
    (without,) = (plain["spec"][key] for key in plain["spec"] if key.endswith("ReplicaSpecs"))
    for role, replica in replicas.items():
        (pod,) = replica["template"]["spec"]["containers"]
        if role != "Launcher":
            assert pod["resources"]["limits"].pop("rdma/hca") == "1"
            assert pod.pop("securityContext") == {"capabilities": {"add": ["IPC_LOCK"]}}
            pod["resources"]["limits"]["nvidia.com/gpu"] = "8"
    assert replicas == without


def test_the_logs_of_a_folder_that_needs_quotes(printed: Callable[..., str]) -> None:
    options = ["--kind", "pytorchjob", "--image", "i", "--claim", "c"]
    job = yaml.safe_load(printed("k8s", "digits", "run_dir='/lsgd/läuf 2'", *options))
    (pod,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert "/lsgd/läuf 2/logs" in pod["command"]


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_value_is_no_line_of_the_manifest(kind: str, printed: Callable[..., str]) -> None:
    """Whatever is in it: a line, a comment, a brace, or a field of the template."""
    values = {
        "--image": "i\n          hostNetwork: true #{{command}}",
        "--claim": "c}, hostPath: {a",
    }
    words = [word for pair in values.items() for word in pair]
    own = yaml.safe_load(printed("k8s", "digits", "--kind", kind, "--image", "i", "--claim", "c"))
    job = yaml.safe_load(printed("k8s", "digits", "--kind", kind, *words))
    plain = json.dumps(own).replace('"image": "i"', f'"image": {json.dumps(values["--image"])}')
    plain = plain.replace('"claimName": "c"', f'"claimName": {json.dumps(values["--claim"])}')
    assert json.dumps(job) == plain
