"""The output of `status` on a narrow terminal, in a pipe, and while jobs start and end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from elastrec.platform import jobs
from elastrec.platform.cli.commands import status as status_command
from elastrec.platform.cli.commands.status import NO_JOBS, Look
from elastrec.platform.cli.reader import ReaderGone
from elastrec.platform.cli.tables import Columns
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tests.processes import wait_for

NAME = "a-job-with-quite-a-long-name-ebd93ee8"


def pod(role: Role = Role.MASTER) -> PodStatus:
    return PodStatus(
        name=f"{NAME}-{role.value}",
        uid="1",
        job=NAME,
        role=role,
        phase=PodPhase.RUNNING,
        size=PodSize(1.0, 2**30),
        created_unix_seconds=0.0,
    )


def metrics(phase: Phase = Phase.TRAINING, **fields: object) -> TrainingMetrics:
    content = {"shards_total": 2048, "shards_done": 1024, "samples_trained": 12_345_678, "auc": 0.7512, "loss": 0.4321}
    return TrainingMetrics.model_validate({"job": NAME, "phase": phase, **content, **fields})


class World:
    """A cluster whose jobs the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now: list[TrainingMetrics] = []
        self.launcher = self
        monkeypatch.setattr(jobs, "jobs", lambda platform, seconds: [jobs.Observation(one) for one in self.now])
        monkeypatch.setattr(jobs, "observe", lambda platform, name, seconds: jobs.Observation(self.now[0]))
        monkeypatch.setattr(status_command.time, "sleep", lambda seconds: None)

    def pods(self, job: str) -> list[PodStatus]:
        return [pod(), pod(Role.WORKER)] if self.now and job == NAME else []

    def jobs(self) -> list[PodStatus]:
        return self.pods(NAME)[:1]

    def look(self, job: str | None = None) -> Look:
        return Look(self, job)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def shown(look: Look, width: int) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=True, color_system=None).print(look.table(width))
    return [line.rstrip() for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("job", [None, NAME])
@pytest.mark.parametrize("width", [40, 80, 100, 132, 200])
def test_no_cell_is_cut_off_and_no_line_wraps_at_any_width(world: World, job: str | None, width: int) -> None:
    world.now = [metrics()]
    lines = shown(world.look(job), width)
    assert not any("…" in line or len(line) > width for line in lines)
    if width >= 80:
        assert lines[1].startswith(NAME)
        assert any(line.startswith("left out") for line in lines) == (width < (132 if job is None else 120))


def test_the_most_important_columns_stay_at_80_characters(world: World) -> None:
    world.now = [metrics()]
    heading = shown(world.look(), 80)[0].split()
    assert heading == ["JOB", "PHASE", "SHARDS", "LOSS", "AUC"]


def test_without_jobs_the_command_prints_a_line(world: World) -> None:
    assert shown(world.look(), 80) == [NO_JOBS]


@pytest.mark.parametrize("job", [None, NAME])
def test_why_a_job_failed_is_shown_below_the_table(world: World, job: str | None) -> None:
    world.now = [metrics(Phase.FAILED, reason="the master failed: its journal is damaged")]
    assert shown(world.look(job), 200)[-1] == f"{NAME}: the master failed: its journal is damaged"


@pytest.mark.parametrize("job", [None, NAME])
@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING, Phase.RECOVERING, Phase.SAVING, Phase.EVALUATING])
def test_what_a_job_waits_for_while_it_does_not_train_is_shown_below_the_table(
    world: World, job: str | None, phase: Phase
) -> None:
    world.now = [metrics(phase, reason="the final record waits for the checkpoint store: no space is left")]
    assert world.look(job).reasons() == [f"{NAME}: the final record waits for the checkpoint store: no space is left"]
    world.now = [metrics(phase)]
    assert world.look(job).reasons() == []


def test_what_a_job_that_trains_waits_for_is_shown_with_its_pods(world: World) -> None:
    world.now = [metrics(reason="writing save 7: waiting for j-ps-1 for 35 s")]
    assert world.look(NAME).reasons() == [f"{NAME}: writing save 7: waiting for j-ps-1 for 35 s"]
    world.now = [metrics(Phase.SUCCEEDED, reason="writing save 7: waiting for j-ps-1 for 35 s")]
    assert world.look(NAME).reasons() == []


def test_a_job_that_trains_has_no_line_below_the_table(world: World) -> None:
    world.now = [metrics(reason="waits for nothing")]
    assert world.look().reasons() == []


@pytest.mark.parametrize("job", [None, NAME])
def test_saves_that_fail_while_a_job_trains_are_shown_with_the_age_of_its_last_record(
    world: World, job: str | None
) -> None:
    world.now = [metrics(failed_saves=2, failing_seconds=130.0, save_problem="disk full", checkpoint_age_seconds=190.0)]
    assert world.look(job).reasons() == [
        f"{NAME}: 2 saves have failed, the first 2m ago; the last complete record is 3m old: disk full"
    ]
    assert "saves failed 2" in world.look(job).lines()[NAME][1]


def test_columns_are_left_out_in_the_order_given() -> None:
    columns = Columns(("A", "B", "C"), ("B", "C"))
    columns.add("aaaa", "bbbb", "cccc")
    assert columns.width(["A", "B", "C"]) == 16
    assert columns.fitting(16) == (["A", "B", "C"], [])
    assert columns.fitting(15) == (["A", "C"], ["B"])
    assert columns.fitting(3) == (["A"], ["B", "C"])
    assert columns.fitting(None) == (["A", "B", "C"], [])


def test_through_a_pipe_a_job_has_a_line_when_its_phase_changes_or_time_has_passed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0

    def looks() -> Iterator[Look]:
        nonlocal now
        for seconds, content in (
            (0.0, []),
            (1.0, [metrics(Phase.STARTING, shards_done=0)]),
            (2.0, [metrics(shards_done=1)]),
            (3.0, [metrics(shards_done=2)]),
            (7.5, [metrics(shards_done=3)]),
            (8.0, [metrics(Phase.EVALUATING)]),
            (9.0, []),
        ):
            now, world.now = seconds, content
            yield world.look()

    status_command._print_lines(looks(), clock=lambda: now)
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(NAME).split()[:1] for line in lines] == [
        ["no"], ["Starting"], ["Training"], ["Training"], ["Evaluating"], ["gone"],
    ]  # fmt: skip
    assert "shards 1/2048" in lines[2] and "shards 3/2048" in lines[3]


def test_watching_one_job_ends_with_the_job(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.now = [metrics()]
    looks = status_command._looks(world, NAME, True)  # type: ignore[arg-type]
    next(looks)
    next(looks)
    world.now = []
    assert list(looks) == []
    assert f"elastrec explain {NAME}" in capsys.readouterr().err


def test_watching_ends_when_nobody_reads_the_output_any_more_although_nothing_is_printed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.Platform, "from_environment", lambda **_: world)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)

        def read_the_first_line() -> None:
            os.read(reader, 100)
            os.close(reader)

        reading = threading.Thread(target=read_the_first_line)
        reading.start()
        with pytest.raises(ReaderGone):
            status_command.status.main(["--watch"], standalone_mode=False)
        reading.join()


@pytest.mark.services
def test_ctrl_c_ends_a_watch_on_a_terminal_without_an_error(tmp_path: Path) -> None:
    start_agent(tmp_path / "agent", cores=1, memory_bytes=2**30, limits="threads").close()
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "ELASTREC_HOME": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(
        # Tests that run in the background ignore Ctrl-C, and so do all their children by inheritance.
        ["env", "--default-signal=INT", sys.executable, "-m", "elastrec.platform.cli", "status", "--watch"],
        stdin=side, stdout=side, stderr=side, env=environment, cwd=tmp_path,
    )  # fmt: skip
    os.close(side)
    screen = bytearray()

    def look() -> None:
        # A terminal that nobody looks at is full after 4 KiB, and then a process that writes to it waits.
        with contextlib.suppress(OSError):
            while some := os.read(main, 4096):
                screen.extend(some)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        wait_for(lambda: NO_JOBS.encode() in screen, 30, "the table")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        looking.join()
        assert b"Traceback" not in screen
    finally:
        process.kill()
        process.wait()
        looking.join()
        os.close(main)
        stop_agent(tmp_path / "agent")
