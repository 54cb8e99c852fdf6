"""The claim to a job is held by one process, until it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.platform.cli.run_claim import InterruptedBySignalError, RunClaim, interrupted_by_signals


def test_of_two_only_the_first_has_the_claim_and_the_second_gets_it_afterwards(tmp_path: Path) -> None:
    with RunClaim(tmp_path, "a-job") as second:
        pass
    with RunClaim(tmp_path, "a-job") as first:
        with RunClaim(tmp_path, "a-job") as second, RunClaim(tmp_path, "another") as other:
            assert first.owner and other.owner not in ("", first.owner)
            assert second.owner == "" and not second.acquire()
        assert first.acquire()
        waiting = RunClaim(tmp_path, "a-job")
        assert not waiting.acquire()
    assert waiting.acquire() and waiting.owner == ""
    waiting.__exit__(None, None, None)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.services
def test_a_process_that_is_killed_leaves_the_claim_to_the_next(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys; from elastrec.platform.cli.run_claim import RunClaim\n"
        "with RunClaim(pathlib.Path(sys.argv[1]), 'a-job'): print('claimed', flush=True); signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        with RunClaim(tmp_path, "a-job") as claim:
            assert not claim.acquire()
            process.kill()
            process.wait()
            assert claim.acquire()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once_and_the_second_is_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(InterruptedBySignalError) as interrupted, interrupted_by_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
        assert interrupted.value.exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
