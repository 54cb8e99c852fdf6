"""JSON schema and the Kubernetes CustomResourceDefinition, both generated from the pydantic models."""

from __future__ import annotations

from typing import Any

from elastrec.platform.specs.job import API_VERSION, TrainingJob
from elastrec.platform.specs.metrics import TrainingMetrics

# What structural schemas of Kubernetes do not know or forbid.
_DROPPED = frozenset({"title", "examples", "$defs", "const", "prefixItems", "discriminator", "additionalProperties"})

_KEPT = ("description", "default", "nullable")


def job_json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a job file."""
    schema = TrainingJob.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def custom_resource_definition() -> dict[str, Any]:
    """The CRD of `TrainingJob` (apiextensions.k8s.io/v1) with `TrainingMetrics` as its status."""
    group, version = API_VERSION.split("/")
    job = _structural(TrainingJob.model_json_schema(by_alias=True))
    status = _structural(TrainingMetrics.model_json_schema(by_alias=True))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"trainingjobs.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "TrainingJob", "plural": "trainingjobs", "singular": "trainingjob", "shortNames": ["tj"]},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                        {"name": "Samples", "type": "integer", "jsonPath": ".status.samples_trained"},
                        {"name": "Samples/s", "type": "number", "jsonPath": ".status.samples_per_second"},
                        {"name": "AUC", "type": "number", "jsonPath": ".status.auc"},
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                # Kubernetes checks these three itself and allows no schema of ours for them.
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": job["properties"]["spec"],
                                "status": status,
                            },
                        }
                    },
                }
            ],
        },
    }


def _structural(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = schema.get("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[1]]
            return walk({**target, **{key: value for key, value in node.items() if key != "$ref"}})
        if "oneOf" in node:
            # Kinds of a section distinguished by one of its fields: no structural type unites them either.
            kept = {key: node[key] for key in _KEPT if key in node}
            return {**kept, "type": "object", "x-kubernetes-preserve-unknown-fields": True}
        node = _collapse_unions(node, definitions)
        if "enum" in node and "type" not in node:
            # Words and truth values: no structural type unites them, the models alone check it.
            return {**{key: node[key] for key in _KEPT if key in node}, "x-kubernetes-preserve-unknown-fields": True}
        if node.get("x-kubernetes-int-or-string"):
            return _quantity(node)
        result: dict[str, Any] = {}
        for key, value in node.items():
            if key == "properties":
                result[key] = {name: walk(child) for name, child in value.items()}
            elif key == "exclusiveMinimum":
                result["minimum"], result["exclusiveMinimum"] = value, True
            elif key == "exclusiveMaximum":
                result["maximum"], result["exclusiveMaximum"] = value, True
            elif key not in _DROPPED:
                result[key] = value if key in ("default", "enum", "required") else walk(value)
        if "const" in node:
            result.update(type="string", enum=[node["const"]])
        if node.get("type") == "object" and "properties" not in node:
            extra = node.get("additionalProperties")
            if isinstance(extra, dict) and extra:
                result["additionalProperties"] = walk(extra)
            else:
                result["x-kubernetes-preserve-unknown-fields"] = True
        return result

    structural = walk(schema)
    assert isinstance(structural, dict)
    return structural


def _quantity(node: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {key: node[key] for key in _KEPT if key in node}
    if any(option.get("type") == "number" for option in node["anyOf"]):
        # No structural type unites fractions and text: 0.5 and 500m are both checked by the models alone.
        return {**kept, "x-kubernetes-preserve-unknown-fields": True}
    pattern = next(option["pattern"] for option in node["anyOf"] if "pattern" in option)
    return {**kept, "x-kubernetes-int-or-string": True, "pattern": pattern}


def _collapse_unions(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    options = node.get("anyOf")
    if not options or node.get("x-kubernetes-int-or-string"):
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    kinds = [option for option in options if option.get("type") != "null"]
    nullable = len(kinds) < len(options)
    if len({"$ref" in option or option.get("type") == "object" for option in kinds}) > 1:
        # No structural type unites a word and a mapping: the models alone check it.
        return {**rest, "x-kubernetes-preserve-unknown-fields": True}
    # `"latest" | text` is text; the enumeration is only documentation.
    chosen = next((option for option in kinds if "enum" not in option and "const" not in option), kinds[0])
    if "$ref" in chosen:
        chosen = definitions[chosen["$ref"].rsplit("/", 1)[1]]
    merged = {**chosen, **rest}
    if nullable:
        merged["nullable"] = True
        if merged.get("default", ...) is None:
            del merged["default"]
    return merged
