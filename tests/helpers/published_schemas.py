"""The manifests of `lsgd launch k8s` against the schemas that their projects publish.

    python -m helpers.published_schemas FOLDER     # in tests/

FOLDER has the CustomResourceDefinitions as YAML files, such as manifests/base/crds of
kubeflow/trainer and config/components/crd/bases of kubernetes-sigs/jobset. A field that a schema
does not have is rejected as kubectl's strict validation does, and named with its path.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

GOLDEN = Path(__file__).parent.parent / "golden/launch"


def strict(schema: Any) -> Any:
    """Return a schema of Kubernetes as JSON Schema that allows no unknown field."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if key != "nullable"}
    if made.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    opened = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(made.get("properties"), dict) and made.get("type") == "object" and not opened:
        made["additionalProperties"] = False
    return made


def published(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the schemas of the definitions in a folder, by API version and kind."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                # A definition leaves the metadata to Kubernetes.
                schema["properties"]["metadata"] = {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "namespace": {"type": "string"},
                        "labels": {"additionalProperties": {"type": "string"}},
                        "annotations": {"additionalProperties": {"type": "string"}},
                    },
                    "additionalProperties": False,
                }
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def problems(manifest: str, schemas: dict[tuple[str, str], Any]) -> Iterator[tuple[str, str]]:
    """Yield for each document of a manifest its kind, with what its schema rejects or ''."""
    for document in yaml.safe_load_all(manifest):
        kind = (document["apiVersion"], document["kind"])
        if kind not in schemas:
            yield document["kind"], f"no schema of {' '.join(kind)} is in the folder"
            continue
        errors = [*Draft202012Validator(schemas[kind]).iter_errors(document)]
        for error in errors:
            yield document["kind"], f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        if not errors:
            yield document["kind"], ""


if __name__ == "__main__":
    known = published(Path(sys.argv[1]))
    failed = False
    names = sys.argv[2:] or [
        path for path in sorted(GOLDEN.iterdir()) if path.read_text().startswith("apiVersion")
    ]
    for name in names:
        for kind, problem in problems(Path(name).read_text(encoding="utf-8"), known):
            failed |= bool(problem)
            print(f"{Path(name).name} {kind}: {problem[:300] or 'valid'}")
    raise SystemExit(failed)
