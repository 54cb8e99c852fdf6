"""The check of the model runs in parallel with that of the data: order of reports, and cleanup."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.jobs import Platform, prepare
from elastrec.platform.jobs.starting import model_check, preparation
from elastrec.platform.jobs.starting.model_check import ModelCheck
from elastrec.platform.specs.errors import FieldProblem, SpecError
from tests.platform.master.fakes import FakeLauncher, job

pytestmark = pytest.mark.services


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _platform(folder: Path) -> Platform:
    return Platform(FakeLauncher(), LocalConfig(address="", token=""), "", str(folder), folder)


def test_leaving_before_the_check_has_ended_ends_it() -> None:
    before = _children()
    with pytest.raises(KeyboardInterrupt), ModelCheck(job()):
        assert _children() - before
        raise KeyboardInterrupt
    assert not _children() - before


def test_a_check_that_takes_too_long_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_check, "_LONGEST_SECONDS", 0.0)
    before = _children()
    with pytest.raises(SpecError, match="still importing"), ModelCheck(job()) as model:
        model.wait()
    assert not _children() - before


class _Unusable(ModelCheck):
    def wait(self) -> None:
        raise SpecError([FieldProblem("spec.model", "dlrm", "another")], "the job's model")


def test_problems_of_the_model_come_before_problems_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "ModelCheck", _Unusable)
    before = _children()
    with pytest.raises(SpecError, match=r"spec\.model"):
        prepare(_platform(tmp_path), job(data={"path": "nowhere", "sparse": [{"name": "user"}]}), "clicks-1")
    assert not _children() - before
    assert not list(tmp_path.iterdir())
