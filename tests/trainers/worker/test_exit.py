"""Errors that a restart cannot cure, and the settings with which the process of a pod starts."""

from __future__ import annotations

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


@pytest.mark.parametrize(("cores", "threads"), [("0.3", 1), ("1", 1), ("1.5", 2), ("4.0", 4)])
def test_threads_follow_the_granted_cores(cores: str, threads: int) -> None:
    assert granted_threads({"ELASTREC_CORES": cores}) == threads


def test_existing_settings_are_not_changed() -> None:
    settings = process_settings({"ELASTREC_CORES": "2", "OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in settings
    assert settings["OMP_WAIT_POLICY"] == "PASSIVE"
    assert settings["MKL_NUM_THREADS"] == "2"
