"""Errors that a restart cannot cure, and the settings with which the process of a pod starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastrec.platform.specs.errors import (
    CheckpointError,
    DataError,
    IncompatibleError,
    JobFailedError,
    SpecError,
    TransportError,
)
from elastrec.trainers.threads import granted_threads, process_settings
from elastrec.trainers.worker import process
from elastrec.trainers.worker.process import is_retryable


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (SpecError([]), False),
        (DataError("bad row"), False),
        (JobFailedError("loss is nan"), False),
        (NameError("a user's bug"), False),
        (RuntimeError("shapes"), False),
        (TransportError("gone"), True),
        (IncompatibleError("another version"), False),
        (CheckpointError("disk full"), True),
        (OSError("disk full"), True),
        (MemoryError(), True),
    ],
)
def test_only_errors_that_another_process_may_not_have_are_retryable(error: Exception, retryable: bool) -> None:
    assert is_retryable(error) is retryable


def test_a_failure_is_reported_without_the_passwords_of_its_causes() -> None:
    reported: list[dict[str, Any]] = []
    session: Any = SimpleNamespace(failed=lambda **report: reported.append(report))
    for error in (OSError("http://u:secret@h is away"), DataError("no file")):
        error.__cause__ = OSError("s3://key:secret@bucket is unknown")
        assert process._fail(session, error) in (process.EXIT_RETRY, process.EXIT_JOB_FAILS)
    assert "http://u:***@h" in reported[0]["reason"] and "s3://key:***@bucket" in reported[1]["traceback"]
    assert "secret" not in str(reported)


@pytest.mark.parametrize(("cores", "threads"), [("0.3", 1), ("1", 1), ("1.5", 2), ("4.0", 4)])
def test_threads_follow_the_granted_cores(cores: str, threads: int) -> None:
    assert granted_threads({"ELASTREC_CORES": cores}) == threads


def test_existing_settings_are_not_changed() -> None:
    settings = process_settings({"ELASTREC_CORES": "2", "OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in settings
    assert settings["OMP_WAIT_POLICY"] == "PASSIVE"
    assert settings["MKL_NUM_THREADS"] == "2"
