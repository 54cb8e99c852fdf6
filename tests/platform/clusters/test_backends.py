"""Backends are found by entry point; a cluster's file is read by the backend that it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.platform.clusters.backends import (
    connect_fleet,
    connect_launcher,
    decode_config,
    encode_config,
    installed_backends,
    load_backend,
)
from elastrec.platform.clusters.local.client import LocalFleet
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.owned_memory import OWNER_BYTES, OwnedMemoryFleet
from elastrec.platform.clusters.pods import MemoryVolume, PodSize, PodSpec
from elastrec.platform.specs.errors import ClusterError, SpecError
from elastrec.platform.specs.metrics import Role

PROGRAM = """
from elastrec.platform.clusters import Backend, ClusterConfig

class Config(ClusterConfig, frozen=True, kw_only=True, tag="nomad"):
    zone: str
    token: str = ""

def launcher(config):
    return ("launcher", config.zone)

def fleet(config, job):
    return ("fleet", config.zone, job)

BACKEND = Backend(Config, launcher, fleet)
NO_BACKEND = "a text"
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that nothing of ours knows, with three entry points."""
    (tmp_path / "nomad_for_elastrec.py").write_text(PROGRAM)
    information = tmp_path / "nomad_for_elastrec-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: nomad-for-elastrec\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[elastrec.clusters]\nnomad = nomad_for_elastrec:BACKEND\nmistaken = nomad_for_elastrec:NO_BACKEND\n"
        "broken = nomad_for_elastrec_that_is_not_there:BACKEND\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_third_partys_backend_is_found_by_its_entry_point(third_party: Path) -> None:
    assert installed_backends() == ("broken", "local", "mistaken", "nomad")
    config = decode_config('{"backend": "nomad", "zone": "z1"}', "the file")
    assert decode_config(encode_config(config), "the file") == config
    assert connect_launcher(config) == ("launcher", "z1")
    assert load_backend("nomad").fleet(config, "clicks-1") == ("fleet", "z1", "clicks-1")
    assert load_backend("nomad").is_remote, "who does not say that it is local is remote"


def test_a_backend_that_does_not_say_that_it_has_memory_volumes_is_sent_none(third_party: Path) -> None:
    nomad, local = load_backend("nomad"), load_backend("local")
    fleet = connect_fleet(decode_config('{"backend": "nomad", "zone": "z1"}', "the file"), "clicks-1")
    assert isinstance(fleet, OwnedMemoryFleet) and fleet.fleet == ("fleet", "z1", "clicks-1")
    assert isinstance(connect_fleet(LocalConfig(address="127.0.0.1:1", token="t"), "clicks-1"), LocalFleet)
    pod = PodSpec(
        name="a", job="j", role=Role.PARAMETER_SERVER, command=("python",), size=PodSize(1.0, 2**30),
        memory_volume=MemoryVolume("ps-0", 2**20),
    )  # fmt: skip
    assert local.as_created(pod) == pod and nomad.as_created(pod).memory_volume is None
    assert nomad.as_created(pod).size.memory_bytes - 2**30 == nomad.bytes_of_volume(2**20) == 2**20 + OWNER_BYTES
    assert local.bytes_of_volume(2**20) == 2**20


def test_the_command_line_uses_a_third_partys_backend(third_party: Path) -> None:
    file = third_party / "cluster.json"
    file.write_text('{"backend": "nomad", "zone": "z1", "region": "r"}')
    home = str(third_party / "home")
    paths = os.pathsep.join([str(third_party), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths, "ELASTREC_CLUSTER": str(file), "ELASTREC_HOME": home}
    command = [sys.executable, "-m", "elastrec.platform.cli", "status"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the fields of nomad: shared_folders, zone, token" in done.stderr and "region" in done.stderr


def test_an_unknown_backend_is_answered_with_those_that_are_installed(third_party: Path) -> None:
    with pytest.raises(ClusterError, match=r"backend: 'k8s' is not allowed; allowed: broken, local, mistaken, nomad"):
        load_backend("k8s")
    with pytest.raises(SpecError, match=r"'k8s' is not allowed; allowed: broken, local, mistaken, nomad"):
        decode_config('{"backend": "k8s"}', "the file")


@pytest.mark.parametrize(
    ("name", "says"), [("broken", "cannot be loaded.*that_is_not_there"), ("mistaken", "which is no Backend")]
)
def test_a_broken_backend_is_reported(third_party: Path, name: str, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        load_backend(name)


def test_the_local_backend_is_an_entry_point_like_any_other() -> None:
    config = LocalConfig(address="127.0.0.1:1", token="t")
    assert json.loads(encode_config(config)) == {
        "backend": "local",
        "address": "127.0.0.1:1",
        "token": "t",
        "tls": "",
        "shared_folders": [],
    }
    assert isinstance(connect_launcher(config), LocalLauncher)
    assert not load_backend("local").is_remote


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "the JSON of a cluster, with the field backend: local"),
        ('{"address": "127.0.0.1:1"}', "missing required field"),
        ('{"backend": "local", "address": "127.0.0.1:1"}', "the fields of local: shared_folders, address, token, tls"),
        ('{"backend": "local", "address": "a", "token": "t", "namespace": "x"}', "namespace"),
    ],
)
def test_a_wrong_configuration_names_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        decode_config(text, "the file")


def test_a_secret_of_a_wrong_configuration_is_not_shown() -> None:
    with pytest.raises(SpecError, match="token: this one is not allowed") as refused:
        decode_config('{"backend": "local", "address": "127.0.0.1:1", "token": "geheim-ä"}', "the file")
    assert "geheim" not in str(refused.value)


def test_importing_the_cluster_protocol_loads_no_backend() -> None:
    code = "import sys, elastrec.platform.clusters; print([m for m in sys.modules if 'clusters.local' in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
