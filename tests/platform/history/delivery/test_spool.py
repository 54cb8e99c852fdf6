"""Metrics that wait for MLflow survive the process that measured them, and are delivered once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.history.delivery import spool as module
from elastrec.platform.history.delivery.reporter import Reporter
from elastrec.platform.history.delivery.spool import Spool
from elastrec.platform.history.points import Point
from elastrec.platform.specs.errors import HistoryError
from tests.platform.history.delivery.test_reporter import Recorder, points


@given(steps=st.lists(st.one_of(st.integers(1, 5), st.just(0)), max_size=40), torn=st.integers(0, 30))
def test_a_new_process_finds_exactly_what_was_added_and_not_removed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], torn: int
) -> None:
    file = tmp_path_factory.mktemp("spool") / "spool"
    waiting: list[Point] = []
    spool, number = Spool(file), 0
    for step in steps:
        if step:
            new = points(number, number + step)
            number += step
            waiting += new
            spool.add(new, waiting)
        elif waiting:
            gone = (len(waiting) + 1) // 2
            waiting = waiting[gone:]
            spool.remove(gone, waiting)
    spool.name_run("run", waiting)
    with file.open("ab") as begun:
        begun.write(b'{"points":[["loss",1.0,'[:torn])
    again = Spool(file)
    assert again.points == waiting and again.run_id == "run"
    # A half line of a process that died does not spoil what the next one writes.
    again.add(points(0, 1), [*waiting, *points(0, 1)])
    assert Spool(file).points == [*waiting, *points(0, 1)]


def test_points_without_a_finite_value_are_kept_and_displace_no_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    odd = [Point("loss", value, 3, 1.0) for value in (float("nan"), float("inf"), float("-inf"))]
    waiting = [*points(0, 2), *odd, *points(4, 6)]
    spool.add(waiting[:5], waiting[:5])
    spool.add(waiting[5:], waiting)
    spool.remove(2, waiting[2:])
    # NaN is not equal to itself.
    assert repr(Spool(tmp_path / "spool").points) == repr(waiting[2:])


def test_delivered_points_do_not_make_the_file_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REWRITTEN_FROM_BYTES", 2000)
    spool = Spool(tmp_path / "spool")
    for number in range(500):
        spool.add(points(number, number + 1), points(number, number + 1))
        spool.remove(1, [])
    assert (tmp_path / "spool").stat().st_size < 4000
    assert Spool(tmp_path / "spool").points == []


def test_many_waiting_points_are_not_written_again_with_every_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REWRITTEN_FROM_BYTES", 2000)
    rewritten, write_bytes = list[int](), Path.write_bytes

    def noted(path: Path, content: bytes) -> int:
        rewritten.append(len(content))
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", noted)
    spool, waiting = Spool(tmp_path / "spool"), list[Point]()
    for number in range(500):
        waiting += points(number, number + 1)
        spool.add(points(number, number + 1), waiting)
    assert rewritten and sum(rewritten) < 2 * (tmp_path / "spool").stat().st_size
    assert Spool(tmp_path / "spool").points == waiting


def test_a_full_disk_is_survived_and_the_problem_cleared_when_there_is_space(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    spool = Spool(folder / "spool")
    spool.add(points(0, 2), points(0, 2))
    folder.mkdir()
    spool.add(points(2, 3), points(0, 3))
    assert Spool(folder / "spool").points == points(0, 3)


def test_a_restarted_reporter_delivers_the_undelivered_points(tmp_path: Path) -> None:
    away, file = Recorder(), tmp_path / "spool"
    away.error = HistoryError("away")
    first = Reporter("", "run", sink=away, spool=Spool(file), interval_seconds=0.01)
    first.log(points(0, 5))
    assert not first.close(0.3)
    back = Recorder()
    second = Reporter("", "run", sink=back, spool=Spool(file), interval_seconds=0.01)
    second.log(points(5, 8))
    assert second.close(5)
    assert back.stored == [float(number) for number in range(8)]
    assert Spool(file).points == []


def test_without_a_run_everything_waits_until_it_is_named_also_in_the_next_process(tmp_path: Path) -> None:
    sink, file = Recorder(), tmp_path / "spool"
    first = Reporter("", "", sink=sink, spool=Spool(file), interval_seconds=0.01)
    first.log(points(0, 3))
    first.close(0.2)
    assert first.undelivered() == points(0, 3) and not sink.calls
    second = Reporter("", "", sink=sink, spool=Spool(file), interval_seconds=0.01)
    second.name_run("late")
    second.name_run("later")
    assert second.run_id == "late" and second.close(5)
    assert sink.stored == [0.0, 1.0, 2.0]
    assert Reporter("", "", sink=sink, spool=Spool(file)).run_id == "late"
