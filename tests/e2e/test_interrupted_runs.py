"""The fate of the job if `elastrec run` is killed, or shares its job with another call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.data.generating.generator import GenerateReport
from tests.e2e.conftest import write_job
from tests.processes import Elastrec, elastrec_at, pod_processes, wait_for

pytestmark = pytest.mark.services

_LONG = ("--from", "2026-01-01", "--set", "spec.training.epochs=200")


class Terminal:
    """`elastrec run` as in a terminal of its own: signals have their defaults, output goes into a file."""

    def __init__(self, elastrec: Elastrec, name: str, *arguments: str) -> None:
        self._file = elastrec.home / f"{name}.txt"
        with self._file.open("wb") as output:
            self.process = subprocess.Popen(
                ["env", "--default-signal", sys.executable, "-m", "elastrec.platform.cli", "run", *arguments],
                env=elastrec.environment, cwd=elastrec.home, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._file.read_text()

    def end(self, number: signal.Signals, seconds: float = 240.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@pytest.fixture(scope="module")
def elastrec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastrec]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o755)
    with elastrec_at(home) as command_line:
        yield command_line


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.terminate()
            terminal.process.wait(240)


def started(elastrec: Elastrec) -> str:
    """The id of the job, as soon as its master has created pods."""
    return wait_for(lambda: next((job for job in elastrec.jobs() if job.pods), None), 240, "the job's pods").job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_stop_the_job_as_ctrl_c_does(
    elastrec: Elastrec, click_log: GenerateReport, terminals: list[Terminal], number: signal.Signals
) -> None:
    terminal = Terminal(elastrec, number.name, str(write_job(elastrec.home, click_log)), *_LONG)
    terminals.append(terminal)
    job = started(elastrec)
    assert terminal.end(number) == 128 + number, terminal.said
    assert elastrec.jobs() == [] and pod_processes(job, "", elastrec.home) == []
    assert "Traceback" not in terminal.said
    own = [file for folder in ("agent", "artifacts", "work") for file in (elastrec.home / folder).rglob("*")]
    own += [elastrec.home / "mlflow.db", elastrec.home / "artifacts"]
    assert [file for file in own if not file.is_symlink() and file.stat().st_mode & 0o077] == []
    again = next(line for line in terminal.said.splitlines() if line.startswith("To continue this job: elastrec run "))
    assert " --from 2026-01-01 --set spec.training.epochs=200 --run-key " in again


def test_a_second_terminal_does_not_touch_the_job_while_the_first_one_runs(
    elastrec: Elastrec, click_log: GenerateReport, terminals: list[Terminal]
) -> None:
    arguments = (str(write_job(elastrec.home, click_log)), *_LONG, "--run-key", "shared")
    terminals.append(Terminal(elastrec, "first", *arguments))
    job = started(elastrec)
    terminals.extend(Terminal(elastrec, name, *arguments) for name in ("second", "third"))
    for terminal in terminals:
        wait_for(lambda terminal=terminal: "workers " in terminal.said, 240, "its own look at the job")
    first, second, third = terminals
    assert second.end(signal.SIGINT) == 130
    assert f"Job {job} continues: another `elastrec run` with the same key waits for it" in second.said
    assert [one.job for one in elastrec.jobs()] == [job] and first.process.poll() is None
    # The first one dies without a word: the third is the only one that can end the job.
    first.process.kill()
    first.process.wait()
    assert third.end(signal.SIGINT) == 130
    assert "is left to" not in third.said and elastrec.jobs() == []


def test_a_run_whose_master_cannot_start_again_fails_soon_with_the_reason(
    elastrec: Elastrec, click_log: GenerateReport, terminals: list[Terminal]
) -> None:
    terminal = Terminal(elastrec, "damaged", str(write_job(elastrec.home, click_log)), *_LONG)
    terminals.append(terminal)
    job = started(elastrec)
    master = pod_processes(job, "master", elastrec.home)[0]
    master.suspend()
    journal = Path(master.environ()["ELASTREC_WORK"]) / "journal.sqlite"
    with journal.open("r+b") as file:
        file.write(bytes(4096))
    journal.with_name("journal.sqlite-wal").unlink()
    os.kill(master.pid, signal.SIGKILL)
    assert terminal.process.wait(240) == 1
    assert "file is not a database" in terminal.said
    kept = elastrec.home / "work" / "logs" / f"{job}-master.log"
    assert str(kept) in terminal.said and "file is not a database" in kept.read_text()
    assert elastrec.jobs() == [] and pod_processes(job, "", elastrec.home) == []
