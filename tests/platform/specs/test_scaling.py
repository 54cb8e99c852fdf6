"""The settings of scaling: allowed values, and messages about others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import elastrec.dags
from elastrec.platform.specs.elasticity import Elasticity
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.specs.scaling import ScalingSettings, load_scaling
from elastrec.platform.specs.text.loading import validate


def test_the_shipped_settings_are_the_documented_defaults() -> None:
    shipped = load_scaling(Path(str(elastrec.dags.__file__)).parent / "scaling.yaml")
    assert shipped == ScalingSettings()


def test_all_wrong_fields_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "scaling.yaml"
    file.write_text("prices: {core_hour: -1}\nmax_slowdown: 1.5\nteams: {ads: {priority: 0}}\npolicies: x\n")
    with pytest.raises(SpecError, match=r"(?s)core_hour.*max_slowdown.*priority.*policies"):
        load_scaling(file)


def test_prices_of_nothing_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "scaling.yaml"
    file.write_text("prices: {core_hour: 0, gibibyte_hour: 0}\n")
    with pytest.raises(SpecError, match="set at least one"):
        load_scaling(file)


def test_a_price_list_without_a_resource_names_it(tmp_path: Path) -> None:
    file = tmp_path / "scaling.yaml"
    file.write_text("prices: {core_hour: 0.1}\n")
    with pytest.raises(SpecError, match=r"prices\.gibibyte_hour"):
        load_scaling(file)


def test_shares_above_the_whole_cluster_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "scaling.yaml"
    file.write_text("teams: {ads: {share: 0.7}, search: {share: 0.5}}\n")
    with pytest.raises(SpecError, match=r"add up to 1\.2, more than the cluster"):
        load_scaling(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("teams: {'ads team': {share: 0.5}}", "teams: the name 'ads team' is not allowed; allowed: letters (A to Z"),
        ("teams: {ads: {shar: 0.5}}", "teams.ads.shar: an unknown field is not allowed; allowed: the fields minimum_"),
        ("plan_lifetime: 0", "plan_lifetime: 0 is not allowed; allowed: more than 0"),
        ("round_interval: 0s", "round_interval: '0s' is not allowed; allowed: more than 0"),
    ],
    ids=["the name of no team", "an unknown field of a team", "plans that are never sent", "rounds without end"],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "scaling.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=re.escape(words)):
        load_scaling(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        load_scaling(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("field", ["workers", "parameter_servers", "worker_cores", "parameter_server_cores"])
def test_bounds_in_the_wrong_order_are_refused(field: str) -> None:
    with pytest.raises(SpecError, match=f"minimum_{field} 5 is above maximum_{field} 2"):
        validate(Elasticity, {f"minimum_{field}": 5, f"maximum_{field}": 2})


@pytest.mark.parametrize("role", ["worker", "parameter_server"])
def test_limits_of_memory_in_the_wrong_order_are_refused_with_their_units(role: str) -> None:
    with pytest.raises(SpecError, match=f"minimum_{role}_memory 4Gi is above maximum_{role}_memory 2Gi"):
        validate(Elasticity, {f"minimum_{role}_memory": "4Gi", f"maximum_{role}_memory": "2Gi"})


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            {"minimum_worker_memory": "4Gi"},
            "scaling.minimum_worker_memory 4Gi is above resources.worker.memory 2Gi, with which the job starts; lower "
            "the minimum or change the size",
        ),
        (
            {"maximum_parameter_server_cores": 0.5},
            "scaling.maximum_parameter_server_cores 0.5 is below resources.parameter_server.cores 1, with which the "
            "job starts; raise the maximum or change the size",
        ),
        (
            {"minimum_workers": 3},
            "scaling.minimum_workers 3 is above resources.worker.count 2, with which the job starts; lower the minimum "
            "or change the number",
        ),
        ({"maximum_workers": 1}, "scaling.maximum_workers 1 is below resources.worker.count 2"),
        (
            {"minimum_parameter_servers": 300, "maximum_parameter_servers": 300},
            "scaling.minimum_parameter_servers 300 is above resources.parameter_server.count 1",
        ),
    ],
)
def test_the_start_up_size_of_a_job_is_within_its_limits(limits: dict[str, Any], words: str) -> None:
    content = {
        "resources": {"worker": {"count": 2}},
        "model": {"architecture": "dlrm", "embedding_dimension": 8},
        "data": {"path": "clicks", "sparse": [{"name": "user"}], "dense": [{"name": "age"}]},
        "scaling": limits,
    }
    with pytest.raises(SpecError, match=re.escape(words)):
        validate(JobSpec, content)


@pytest.mark.parametrize(("role", "most"), [("worker", 64), ("parameter_server", 16)])
def test_a_job_that_starts_with_more_pods_than_the_default_maximum_names_its_own(role: str, most: int) -> None:
    content: dict[str, Any] = {
        "model": {"architecture": "dlrm"},
        "data": {"path": "clicks", "sparse": [{"name": "user"}]},
        "resources": {role: {"count": most + 1}},
    }
    with pytest.raises(SpecError, match=f"maximum_{role}s {most} is below .*{role}.count {most + 1},.* raise the max"):
        validate(JobSpec, content)
    validate(JobSpec, content | {"scaling": {f"maximum_{role}s": most + 1}})
