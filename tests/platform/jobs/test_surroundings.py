"""Locations given by environment variables, and errors in them."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.jobs import Platform, tls_folder
from elastrec.platform.jobs.surroundings import home_folder, read_cluster_config
from elastrec.platform.specs.errors import AuthenticationError, SpecError
from tests.disks import small_disk

FILES = ("ca.pem", "tls.crt", "tls.key")


@pytest.fixture
def material(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"text of {name}")
    return folder


def test_tls_is_off_unless_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, material: Path) -> None:
    monkeypatch.delenv("ELASTREC_TLS", raising=False)
    assert tls_folder() is None
    monkeypatch.setenv("ELASTREC_TLS", str(material))
    assert tls_folder() == material


@pytest.mark.parametrize("missing", FILES)
def test_a_folder_that_lacks_a_file_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, material: Path, missing: str
) -> None:
    (material / missing).unlink()
    monkeypatch.setenv("ELASTREC_TLS", str(material))
    with pytest.raises(SpecError, match=rf"ELASTREC_TLS.*no {missing}.*a folder with ca.pem, tls.crt, tls.key"):
        tls_folder()


def test_a_user_without_a_home_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ELASTREC_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(SpecError, match="ELASTREC_HOME is missing; needed: a folder, because this user has no home"):
        home_folder()


def test_a_home_on_a_disk_that_cannot_be_written_is_refused_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("ELASTREC_HOME", str(home))
    with small_disk(home, 1 << 20):
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
        with pytest.raises(SpecError, match=r"ELASTREC_HOME: .*its file system is mounted read-only"):
            home_folder()


@pytest.mark.services
def test_the_work_folder_is_the_owners_alone_in_a_home_that_others_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    monkeypatch.setenv("ELASTREC_HOME", str(home))
    for variable in ("ELASTREC_TLS", "ELASTREC_CLUSTER", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    start_agent(home / "agent", cores=1, memory_bytes=2**30, limits="threads").close()
    try:
        Platform.from_environment(start=False)
    finally:
        stop_agent(home / "agent")
    assert {path.name for path in home.iterdir()} == {"agent", "work"}
    assert [path.name for path in home.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


@pytest.mark.parametrize("token", ["geheim-ä", "line\n", "nul\0"])
def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path, token: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(msgspec.json.encode(LocalConfig(address="127.0.0.1:1", token=token)))
    with pytest.raises(SpecError, match="token: this one is not allowed; allowed: printable ASCII characters") as error:
        read_cluster_config(file)
    assert token not in str(error.value)
    with pytest.raises(AuthenticationError, match="other than printable ASCII"):
        LocalCluster("127.0.0.1:1", token)
