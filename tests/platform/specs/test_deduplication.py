"""The field `deduplication` of the job file: auto, off, or the deduplicated features."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.crd import custom_resource_definition, job_json_schema
from elastrec.platform.specs.text.loading import dump_job, load_job


def job(deduplication: str) -> TrainingJob:
    return load_job(
        "apiVersion: elastrec.io/v1alpha1\nkind: TrainingJob\nmetadata: {name: click}\n"
        "spec:\n  model: {architecture: dlrm}\n"
        "  data: {path: clicks, sparse: [{name: user}, {name: cart, is_list: true}]}\n"
        f"  deduplication: {deduplication}\n"
    )


@pytest.mark.parametrize(
    ("text", "auto", "off", "named"),
    [
        ("auto", True, False, ()),
        ("off", False, True, ()),
        ("'off'", False, True, ()),
        ("{features: [cart]}", False, False, ("cart",)),
        ("{groups: [[user, cart]]}", False, False, ("user", "cart")),
    ],
)
def test_a_word_or_a_mapping_survives_the_way_to_yaml_and_back(
    text: str, auto: bool, off: bool, named: tuple[str, ...]
) -> None:
    found = job(text)
    wanted = found.spec.deduplication
    assert (wanted.is_auto, wanted.is_off, wanted.named) == (auto, off, named)
    dumped = dump_job(found)
    assert load_job(dumped) == found
    jsonschema.validate(yaml.safe_load(dumped), job_json_schema())


def test_without_the_line_nothing_is_deduplicated() -> None:
    content: dict[str, Any] = yaml.safe_load(dump_job(job("auto")))
    del content["spec"]["deduplication"]
    assert load_job(content).spec.deduplication.is_off


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on", "spec.deduplication: True is not allowed; allowed: auto, off, or a mapping with features or groups"),
        ("always", "spec.deduplication: 'always' is not allowed; allowed: auto, off"),
        ("{features: [basket]}", "deduplication names \\['basket'\\], which are no sparse features; known:.*'cart'"),
        ("{groups: [[cart], [cart, user]]}", "\\['cart'\\] are named more than once"),
        ("{groups: [[]]}", "every group needs at least one feature"),
        ("{features: []}", "features is empty: name at least one, or write off"),
        ("{features: [cart], groups: [[user]]}", "features or groups, not both"),
        ("{group: [[cart]]}", "did you mean 'groups'?"),
    ],
)
def test_wrong_deduplication_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job(text)


def test_kubernetes_takes_a_word_and_a_mapping() -> None:
    root = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    field = root["properties"]["spec"]["properties"]["deduplication"]
    assert field["x-kubernetes-preserve-unknown-fields"] and "type" not in field
