"""The schemas are generated from the models and agree with them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from elastrec.platform.specs.text.crd import custom_resource_definition, job_json_schema
from elastrec.platform.specs.text.loading import dump_job, load_job

JOB = {
    "apiVersion": "elastrec.io/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "click"},
    "spec": {"model": {"architecture": "dlrm"}, "data": {"path": "clicks", "sparse": [{"name": "C1"}]}},
}


def test_a_job_with_all_defaults_written_out_satisfies_the_json_schema() -> None:
    schema = job_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    written = yaml.safe_load(dump_job(load_job(JOB)))
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(written)) == []


def test_the_json_schema_refuses_what_the_models_refuse() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(JOB))
    wrong["spec"]["resources"] = {"worker": {"memory": "2GB"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, job_json_schema())


def nodes(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema of a structural schema with its path."""
    found = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        found += nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += nodes(schema[key], f"{path}.{key}")
    return found


def test_the_crd_is_a_structural_schema() -> None:
    definition = custom_resource_definition()
    root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, node in nodes(root):
        assert "$ref" not in node and "anyOf" not in node, path
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node, path
        elif node.get("x-kubernetes-preserve-unknown-fields"):
            assert node.get("type", "object") == "object", path
        else:
            assert node.get("type") in {"object", "array", "string", "integer", "number", "boolean"}, path
        # Kubernetes forbids both on one node.
        assert not ("properties" in node and "additionalProperties" in node), path


def test_the_crd_knows_every_field_of_the_job_and_its_status() -> None:
    root = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    dumped = yaml.safe_load(dump_job(load_job(JOB)))["spec"]
    assert set(dumped) <= set(root["properties"]["spec"]["properties"])
    assert {"phase", "samples_trained", "auc"} <= set(root["properties"]["status"]["properties"])
