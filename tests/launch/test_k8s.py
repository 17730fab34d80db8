"""The manifests of Kubernetes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lsgd.launch.__main__ import main
from lsgd.launch.k8s import KINDS
from lsgd.launch.manifest import pod_templates

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "launch"


@pytest.mark.slow
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


@pytest.mark.kubeflow
@pytest.mark.parametrize("name", ["trainjob", "jobset", "k8s-site"])
def test_kubernetes_knows_every_field_of_a_pod(name: str) -> None:
    """The parts of their own kinds are held against published schemas by hand."""
    from kubernetes import client

    documents = yaml.safe_load_all((GOLDEN / f"{name}.txt").read_text())
    templates = [*pod_templates(json.loads(json.dumps([*documents])))]
    assert templates
    for template in templates:
        answer = SimpleNamespace(data=json.dumps(template))
        known = client.ApiClient().deserialize(answer, client.V1PodTemplateSpec)
        assert client.ApiClient().sanitize_for_serialization(known) == template


def options_of(kind: str) -> list[str]:
    return ["--kind", kind, "--image", "i", "--claim", "c", "--nodes", "2"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_is_merged_by_name_into_each_pod(
    kind: str, printed: Callable[..., str], tmp_path: Path
) -> None:
    """What it does not name stays; null removes; the job's own fields are patched beside."""
    patch = tmp_path / "patch.yaml"
    patch.write_text("""\
kind: Pod
metadata: {annotations: {a: "1"}}
spec:
  hostNetwork: true
  containers:
    - name: "*"
      workingDir: null
      env: [{name: LSGD_DATA, value: /nvme}, {name: A, value: "yes"}]
      volumeMounts: [{name: nvme, mountPath: /nvme}, {name: other, mountPath: /lsgd}]
  volumes: [{name: nvme, hostPath: {path: /nvme}}]
---
metadata: {labels: {team: a}}
""")
    plain = [*yaml.safe_load_all(printed("k8s", "digits", *options_of(kind)))]
    text = printed("k8s", "digits", *options_of(kind), "--patch", str(patch))
    jobs = [*yaml.safe_load_all(text)]
    assert [job["kind"] for job in jobs] == [job["kind"] for job in plain]
    assert jobs[-1]["metadata"] == {"name": "digits", "labels": {"team": "a"}}
    expected = [*pod_templates(json.loads(json.dumps(plain)))]
    for template, before in zip(pod_templates(jobs), expected, strict=True):
        assert template.pop("metadata") == before.pop("metadata", {}) | {"annotations": {"a": "1"}}
        spec, was = template["spec"], before["spec"]
        assert spec.pop("hostNetwork")
        assert spec.pop("volumes") == [
            *was.pop("volumes"),
            {"name": "nvme", "hostPath": {"path": "/nvme"}},
        ]
        (container,), (old,) = spec["containers"], was["containers"]
        env = {each.pop("name"): each for each in container.pop("env")}
        env_before = {each.pop("name"): each for each in old.pop("env")}
        added = {"LSGD_DATA": {"value": "/nvme"}, "A": {"value": "yes"}}
        assert env == env_before | added
        mounts = {each["mountPath"]: each["name"] for each in container.pop("volumeMounts")}
        mounts_before = {each["mountPath"]: each["name"] for each in old.pop("volumeMounts")}
        assert mounts == mounts_before | {"/nvme": "nvme", "/lsgd": "other"}
        del old["workingDir"]
        assert container == old


def test_a_patch_of_one_pod_leaves_the_others_alone(
    printed: Callable[..., str], tmp_path: Path
) -> None:
    """Also where a patch of all pods has set the same field before."""
    patch = tmp_path / "patch.yaml"
    patch.write_text("""\
kind: Pod
spec: {nodeSelector: {pool: a}, volumes: [{name: nvme, hostPath: {path: /nvme}}]}
---
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          nodeSelector: {zone: b}
          volumes: [{name: nvme, hostPath: {type: Directory}}]
""")
    words = [*options_of("pytorchjob"), "--patch", str(patch)]
    pods = yaml.safe_load(printed("k8s", "digits", *words))["spec"]["pytorchReplicaSpecs"]
    master, worker = (pods[name]["template"]["spec"] for name in ("Master", "Worker"))
    assert master["nodeSelector"] == {"pool": "a"}
    assert worker["nodeSelector"] == {"pool": "a", "zone": "b"}
    assert master["volumes"][-1]["hostPath"] == {"path": "/nvme"}
    assert worker["volumes"][-1]["hostPath"] == {"path": "/nvme", "type": "Directory"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_a_cluster(kind: str, printed: Callable[..., str]) -> None:
    """Each where Kubernetes looks for it; a pod that trains nothing gets no share of a node."""
    words = [
        "--namespace", "ml", "--env", "A=1e3,B=$(A),c", "--secret", "s", "--pull-secret", "p,q",
        "--node-selector", "a/b=c", "--tolerate", "k=v:NoSchedule", "--requests", "cpu=64",
        "--limits", "memory=9Gi", "--queue", "team",
    ]  # fmt: skip
    if kind != "trainjob":
        words += ["--ttl", "60"]
    jobs = [*yaml.safe_load_all(printed("k8s", "digits", *options_of(kind), *words))]
    job = jobs[-1]
    assert {each["metadata"]["namespace"] for each in jobs} == {"ml"}
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    if kind != "trainjob":
        spec = job["spec"] if kind == "jobset" else job["spec"]["runPolicy"]
        assert spec["ttlSecondsAfterFinished"] == 60
    trains = 0
    for template in pod_templates(jobs):
        spec = template["spec"]
        (pod,) = spec["containers"]
        assert pod["env"][-2:] == [{"name": "A", "value": "1e3"}, {"name": "B", "value": "$$(A),c"}]
        assert pod["envFrom"] == [{"secretRef": {"name": "s"}}]
        assert spec["imagePullSecrets"] == [{"name": "p"}, {"name": "q"}]
        assert spec["nodeSelector"] == {"a/b": "c"}
        [toleration] = spec["tolerations"]
        assert toleration == {
            "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule",
        }  # fmt: skip
        if "resources" in pod:
            trains += 1
            assert pod["resources"] == {
                "limits": {"nvidia.com/gpu": "8", "memory": "9Gi"}, "requests": {"cpu": "64"},
            }  # fmt: skip
    assert trains == (2 if kind == "pytorchjob" else 1)


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("jobset", "kind: MPIJob", "--patch is of kind MPIJob, which this manifest does not have"),
        ("jobset", "- a", "has a document that is not a mapping"),
        ("jobset", "a: [", "is not YAML"),
        ("jobset", "---\n3", "has a document that is not a mapping"),
        ("jobset", None, "cannot be read"),
        ("trainjob", "", "--ttl has no field in a TrainJob"),
    ],
)
def test_a_patch_that_fits_nothing(
    kind: str, text: str | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = tmp_path / "patch.yaml"
    if text is not None:
        patch.write_text(text)
    more = ["--ttl", "9"] if kind == "trainjob" else ["--patch", str(patch)]
    assert main(["k8s", "digits", *options_of(kind), *more, "--print"]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_of_a_patch_stands_in_place_of_the_own_one(
    kind: str, printed: Callable[..., str], tmp_path: Path
) -> None:
    """As kubectl merges lists of texts; it also ignores the empty document of a --- at the end."""
    patch = tmp_path / "patch.yaml"
    container = '{name: "*", command: [sleep, "9"]}'
    patch.write_text(f"---\nkind: Pod\nspec: {{containers: [{container}]}}\n---\n")
    words = [*options_of(kind), "--patch", str(patch)]
    for template in pod_templates([*yaml.safe_load_all(printed("k8s", "digits", *words))]):
        [container] = template["spec"]["containers"]
        assert container["command"] == ["sleep", "9"]


def test_plain_values_of_a_patch_are_read_as_by_kubectl(
    printed: Callable[..., str], tmp_path: Path
) -> None:
    """Go's YAML has neither numbers to the base 60 nor dates, and more forms of numbers."""
    values = {
        "12:30": "12:30", "1:30.5": "1:30.5", "2026-11-29": "2026-11-29", "=": "=", "0o": "0o",
        "0o7": 7, "0644": 420, "0x1F": 31, "-12": -12, "0": 0, "1e3": 1000.0, ".5": 0.5, "1.": 1.0,
        "yes": True, "null": None, "'0o7'": "0o7",
    }  # fmt: skip
    patch = tmp_path / "patch.yaml"
    patch.write_text(f"metadata: {{annotations: {{a: [{', '.join(values)}]}}}}\n")
    text = printed("k8s", "digits", *options_of("jobset"), "--patch", str(patch))
    [job, *_] = [each for each in yaml.safe_load_all(text) if each["kind"] == "JobSet"]
    assert job["metadata"]["annotations"]["a"] == [*values.values()]


def test_a_quota_is_met_by_the_patch_of_the_page(
    printed: Callable[..., str], tmp_path: Path
) -> None:
    """The launcher of an MPIJob has no other resources."""
    page = (ROOT / "docs/how-to/cluster.md").read_text()
    [text] = [text for text in re.findall("```yaml\n(.*?)```", page, re.S) if "Launcher:" in text]
    patch = tmp_path / "patch.yaml"
    patch.write_text(text)
    sizes = ["--requests", "cpu=64,memory=500Gi", "--limits", "cpu=64,memory=500Gi"]
    words = [*options_of("mpijob"), *sizes, "--patch", str(patch)]
    for template in pod_templates([*yaml.safe_load_all(printed("k8s", "digits", *words))]):
        [container] = template["spec"]["containers"]
        for sizes_of in container["resources"].values():
            assert sizes_of.keys() >= {"cpu", "memory"}


def test_a_name_with_the_ending_of_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    """It counts against the limit, and the message has the user's own name."""
    words = ["k8s", "digits", *options_of("jobset"), "--nodes", "1", "--print"]
    longest = "a" * 48
    for name, more, refusal in (
        (longest, [], ""),
        (longest, ["--check"], "48 characters, which would make pod names longer than the 63 that"),
        (longest[6:], ["--check"], ""),
        ("2017-run", [], "--name is 2017-run, but must have only lower-case letters, digits and"),
        ("a-", ["--check"], "--name is a-, but must have only"),
    ):
        assert main([*words, *more, "--name", name]) == (2 if refusal else 0)
        said = capsys.readouterr().err
        assert refusal in said
        assert "write --name with 42 or fewer" in said or "characters" not in said


def test_words_arrive_as_they_were_written(printed: Callable[..., str]) -> None:
    """Through YAML's quotes, and past Kubernetes, to which $(NAME) is a variable."""
    words = ['a="it\'s"', "b=c\\d", "e=$(F)", "g=ä\tö\nü", "h=$$(I)"]
    options = ["--kind", "mpijob", "--image", "i", "--claim", "c"]
    job = yaml.safe_load(printed("k8s", "digits", *words, *options))
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-6:-1] == [word.replace("$", "$$") for word in words]


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_pod_gets_the_network_card_that_is_named(kind: str, printed: Callable[..., str]) -> None:
    """And, as root, may lock the memory that it is to read; only the pods that train."""
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


def test_labels_are_split_at_every_comma(printed: Callable[..., str]) -> None:
    """Also before a digit, where a variable would go on."""
    words = ["--node-selector", "pool=h100,3d=no,a.b/c=", "--env", "A=1,3d=no"]
    [job] = yaml.safe_load_all(printed("k8s", "digits", *options_of("jobset"), *words))
    [template] = pod_templates([job])
    assert template["spec"]["nodeSelector"] == {"pool": "h100", "3d": "no", "a.b/c": ""}
    [container] = template["spec"]["containers"]
    assert container["env"][-1] == {"name": "A", "value": "1,3d=no"}


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--node-selector", "p=" + "a" * 63, "p=" + "a" * 64),
        ("--node-selector", f"{'a' * 63}=b", f"{'a' * 64}=b"),
        ("--node-selector", "a.b/c=d", "a..b/c=d"),
        ("--node-selector", "a=b", "ä=b"),
        ("--tolerate", "a.b/c", "a/b/c"),
        ("--queue", "a" * 63, "a" * 64),
        ("--queue", "a.b", "a..b"),
        ("--namespace", "a" * 63, "a" * 64),
        ("--namespace", "a-b", "a.b"),
        ("--claim", "a" * 253, "a" * 254),
        ("--secret", "a.b,c", "a..b,c"),
        ("--requests", "nvidia.com/mig-1g.5gb=1", "a/b/c=1"),
        ("--rdma", "rdma/hca", ".rdma/hca"),
    ],
)
def test_a_value_that_kubernetes_refuses(
    option: str, good: str, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["k8s", "digits", *options_of("jobset"), "--nodes", "1", "--print"]
    assert main([*words, option, good]) == 0
    capsys.readouterr()
    assert main([*words, option, bad]) == 2
    assert f"lsgd: {option} is {bad}, but must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requests", "limits", "fits"),
    [
        ("cpu=64", "cpu=32", False),
        ("cpu=32", "cpu=64", True),
        ("memory=1Gi", "memory=1G", False),
        ("memory=1024Mi", "memory=1Gi", True),
        ("cpu=1500m", "cpu=1.5", True),
        ("cpu=1501m", "cpu=1.5", False),
        ("cpu=64", "memory=1", True),
        ("rdma/hca=1", "rdma/hca=2", False),
        ("rdma/hca=2", "rdma/hca=2", True),
    ],
)
def test_a_pod_asks_for_no_more_than_its_limit(
    requests: str, limits: str, fits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["k8s", "digits", *options_of("jobset"), "--nodes", "1", "--print"]
    code = main([*words, "--requests", requests, "--limits", limits])
    said = capsys.readouterr().err
    assert (code, said == "") == ((0, True) if fits else (2, False))
    assert (
        fits
        or "/" in requests
        or f"--requests {requests} is above --limits {limits}; write a limit" in said
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_makes_root_of_the_user_that_may_lock_memory(
    kind: str, printed: Callable[..., str], tmp_path: Path
) -> None:
    """The patch of the page on clusters, which keeps the capability."""
    page = (ROOT / "docs/how-to/cluster.md").read_text()
    [text] = [text for text in re.findall("```yaml\n(.*?)```", page, re.S) if "runAsUser" in text]
    patch = tmp_path / "patch.yaml"
    patch.write_text(text)
    words = [*options_of(kind), "--rdma", "rdma/hca", "--patch", str(patch)]
    for template in pod_templates([*yaml.safe_load_all(printed("k8s", "digits", *words))]):
        assert template["spec"]["securityContext"] == {"fsGroup": 1000}
        [container] = template["spec"]["containers"]
        context = container["securityContext"]
        assert context.pop("runAsUser") == 0
        trains = "resources" in container
        assert context == ({"capabilities": {"add": ["IPC_LOCK"]}} if trains else {})


def test_a_recipe_that_no_pod_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be on the claim or in the image, so the job is made all the same."""
    own = tmp_path / "own"
    own.mkdir()
    for file in (tmp_path / "mine.yaml", own / "mine.yaml"):
        file.write_text("defaults: [digits]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSGD_RECIPES", "own")
    for recipe, named in (
        (f"{tmp_path}/mine.yaml", "is outside of /lsgd, so the pods have it only if the image has"),
        ("./mine.yaml", "the pods read recipe ./mine.yaml as /lsgd/mine.yaml; copy it there"),
        ("mine", "copy own/mine.yaml to the claim and write /lsgd/mine.yaml"),
        ("digits", ""),
    ):
        assert main(["k8s", recipe, *options_of("jobset"), "--nodes", "1", "--print"]) == 0
        said = capsys.readouterr().err
        assert named in said
        assert bool(said) == bool(named)


def test_the_logs_of_a_folder_that_needs_quotes(printed: Callable[..., str]) -> None:
    options = ["--kind", "pytorchjob", "--image", "i", "--claim", "c"]
    job = yaml.safe_load(printed("k8s", "digits", "run_dir='/lsgd/läuf 2'", *options))
    (pod,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert "/lsgd/läuf 2/logs" in pod["command"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_yaml_takes_for_no_text(kind: str, printed: Callable[..., str]) -> None:
    """Nor is it broken by quotes where it is a part of another value."""
    jobs = [*yaml.safe_load_all(printed("k8s", "digits", *options_of(kind), "--name", "no"))]
    assert {job["metadata"]["name"] for job in jobs} == {"no"}
    if kind == "jobset":
        [template] = pod_templates(jobs)
        [container] = template["spec"]["containers"]
        addresses = [each for each in container["env"] if each["name"] == "PET_MASTER_ADDR"]
        assert addresses == [{"name": "PET_MASTER_ADDR", "value": "no-node-0-0.no"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_no_line_of_the_manifest(kind: str, printed: Callable[..., str]) -> None:
    """Whatever is in it: a comment, a brace, a list, or a field of the template."""
    image = "{i:#{{command}}},[*a"
    words = ["--image", image, "--claim", "c"]
    own = [
        *yaml.safe_load_all(
            printed("k8s", "digits", "--kind", kind, "--image", "i", "--claim", "c")
        )
    ]
    job = [*yaml.safe_load_all(printed("k8s", "digits", "--kind", kind, *words))]
    plain = json.dumps(own).replace('"image": "i"', f'"image": {json.dumps(image)}')
    assert json.dumps(job) == plain


@pytest.mark.parametrize("option", ["--image", "--claim", "--namespace", "--queue"])
def test_a_name_has_no_second_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["k8s", "digits", *options_of("jobset"), f"{option}=i\nhostNetwork: true", "--print"]
    assert main(words) == 2
    assert f"lsgd: {option} is 'i\\nhostNetwork: true', but must be" in capsys.readouterr().err
