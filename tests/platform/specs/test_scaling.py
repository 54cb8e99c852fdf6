"""The settings of scaling: what is allowed, and what the refusal of anything else says."""

from __future__ import annotations

from pathlib import Path

import pytest

import elastrec.dags
from elastrec.platform.specs.elasticity import Elasticity
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.scaling import ScalingSettings, load_scaling
from elastrec.platform.specs.text.loading import validate


def test_the_shipped_settings_are_the_documented_defaults() -> None:
    shipped = load_scaling(Path(str(elastrec.dags.__file__)).parent / "scaling.yaml")
    assert shipped == ScalingSettings()


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
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


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        load_scaling(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("pods", ["workers", "parameter_servers"])
def test_bounds_in_the_wrong_order_are_refused(pods: str) -> None:
    with pytest.raises(SpecError, match=f"minimum_{pods} 5 is above maximum_{pods} 2"):
        validate(Elasticity, {f"minimum_{pods}": 5, f"maximum_{pods}": 2})
