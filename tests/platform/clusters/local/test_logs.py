"""Logs: bounded, followed while they grow, kept until the pod is deleted."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastrec.platform.clusters.local.processes import pod_logs
from elastrec.platform.clusters.local.processes.shim import SegmentedLog
from elastrec.platform.clusters.pods import RestartPolicy
from elastrec.platform.specs.errors import ClusterError

pytestmark = pytest.mark.services


def test_lines_of_both_streams_come_in_their_order(cluster, make_pod, until):
    pod = make_pod("import sys\nfor n in range(3): print('out', n); print('err', n, file=sys.stderr)")
    cluster.create(pod)
    until(cluster, pod.name)
    expected = [f"{stream} {n}" for n in range(3) for stream in ("out", "err")]
    assert list(cluster.logs(pod.name)) == expected
    assert list(cluster.logs(pod.name, tail_lines=2)) == expected[-2:]
    assert list(cluster.logs(pod.name, tail_lines=100)) == expected
    assert list(cluster.logs(pod.name, tail_lines=0)) == []


def test_following_shows_each_line_as_it_comes_and_ends_with_the_pod(cluster, make_pod):
    program = (
        "import os, pathlib, time\nprint('first')\n"
        "while not pathlib.Path(os.environ['ELASTREC_WORK'], 'go').exists(): time.sleep(0.01)\n"
        "print('last', end='')"
    )
    pod = make_pod(f"import os; print(os.getcwd())\n{program}")
    cluster.create(pod)
    lines = cluster.logs(pod.name, follow=True)
    folder = next(lines)
    assert next(lines) == "first"
    Path(folder, "go").touch()
    assert list(lines) == ["last"]


def test_following_continues_after_a_restart_in_place(cluster, make_pod):
    program = (
        "import pathlib; f = pathlib.Path('was'); again = f.exists(); f.touch()\n"
        "print(again); raise SystemExit(0 if again else 1)"
    )
    pod = make_pod(program, restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    assert list(cluster.logs(pod.name, follow=True)) == ["False", "True"]


def test_following_ends_when_the_pod_is_deleted(cluster, make_pod):
    pod = make_pod("print('up')\nimport signal; signal.pause()")
    cluster.create(pod)
    lines = cluster.logs(pod.name, follow=True)
    assert next(lines) == "up"
    cluster.delete(pod.name)
    assert list(lines) == []
    with pytest.raises(ClusterError, match="is not there"):
        list(cluster.logs(pod.name))


def test_output_that_is_not_text_does_not_break_the_reader(cluster, make_pod, until):
    pod = make_pod("import os; os.write(1, b'\\xff\\xfe ok\\n')")
    cluster.create(pod)
    until(cluster, pod.name)
    assert next(cluster.logs(pod.name)).endswith(" ok")


def test_a_flood_of_output_is_bounded_and_its_end_is_kept(cluster, make_pod, until):
    pod = make_pod(
        "import sys\nfor n in range(1300): sys.stdout.write('x' * 65535 + '\\n')\nprint('the end')", cores=2.0
    )
    cluster.create(pod)
    until(cluster, pod.name, seconds=60.0)
    assert list(cluster.logs(pod.name, tail_lines=1)) == ["the end"]
    total = sum(len(line) + 1 for line in cluster.logs(pod.name))
    assert 32 << 20 < total <= (64 << 20) + (1 << 16)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(st.text("ab\n", max_size=30), max_size=20),
    segment_bytes=st.integers(8, 64),
    lines=st.integers(0, 12),
)
def test_reading_in_segments_equals_reading_one_file(tmp_path_factory, writes, segment_bytes, lines):
    folder = tmp_path_factory.mktemp("log")
    log = SegmentedLog(str(folder), segment_bytes, 1000)
    for text in writes:
        log.write(text.encode())
    whole = "".join(writes).encode()
    data, position = b"", 0
    while True:
        chunk, position = pod_logs.read_from(folder, position)
        if not chunk:
            break
        data += chunk
    assert data == whole
    assert pod_logs.end_position(folder) == len(whole)
    kept = whole.splitlines(keepends=True)
    expected = b"".join(kept[max(0, len(kept) - lines) :])
    assert whole[pod_logs.tail_position(folder, lines) :] == expected


def test_a_reader_behind_the_limit_continues_with_the_oldest_kept_byte(tmp_path):
    log = SegmentedLog(str(tmp_path), 10, 2)
    for number in range(10):
        log.write(f"{number}".encode() * 10)
    data, position = pod_logs.read_from(tmp_path, 0)
    assert data == b"9" * 10
    assert position == 100


def test_the_end_of_a_log_is_found_while_its_oldest_segment_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SegmentedLog(str(tmp_path), 10, 5)
    for line in (b"the first\n", b"the second\n", b"the third\n"):
        log.write(line)
    listed = pod_logs._segments(tmp_path)
    listed[0].unlink()
    monkeypatch.setattr(pod_logs, "_segments", lambda folder: listed)
    for lines in (2, 3):
        position = pod_logs.tail_position(tmp_path, lines)
        monkeypatch.setattr(pod_logs, "_segments", lambda folder: listed[1:])
        assert pod_logs.read_from(tmp_path, position) == (b"the second\n", 21)
        monkeypatch.setattr(pod_logs, "_segments", lambda folder: listed)


def test_a_segment_that_cannot_be_made_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SegmentedLog(str(tmp_path), 10, 5)
    with monkeypatch.context() as full:
        full.setattr("os.open", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        log.write(b"first segm")
    log.write(b"ent\n")
    log.write(b"second\n")
    assert pod_logs.read_from(tmp_path, 0) == (b"first segment\n", 14)
    assert pod_logs.read_from(tmp_path, 14) == (b"second\n", 21)
