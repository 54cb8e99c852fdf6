"""The choice of waiting pods to start: properties for random pods, groups and priorities."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.clusters.local.agent.admission import admission
from elastrec.platform.clusters.local.agent.pod_life import PodRecord, Stage, free_of, new_record, shortage, starting
from elastrec.platform.clusters.pods import PodGroup, PodSize, PodSpec
from elastrec.platform.specs.metrics import Role

TOTAL = PodSize(8.0, 8)


@st.composite
def crowds(draw: st.DrawFn) -> list[PodRecord]:
    """Pods of two jobs, some of them running or ended, some in groups."""
    least = {name: draw(st.integers(1, 4)) for name in ("a", "b")}
    records: list[PodRecord] = []
    for number in range(draw(st.integers(0, 12))):
        group = draw(st.sampled_from([None, "a", "b"]))
        spec = PodSpec(
            name=f"pod-{number}",
            job=draw(st.sampled_from(["one", "two"])),
            role=Role.WORKER,
            command=("x",),
            size=PodSize(float(draw(st.integers(1, 4))), draw(st.integers(1, 4))),
            group=PodGroup(group, least[group]) if group else None,
            priority=draw(st.integers(0, 2)),
        )
        record = new_record(spec, uid=str(number), node="n", port=0, now=0.0)
        state = draw(st.sampled_from(["waiting", "waiting", "waiting", "running", "ended"]))
        if state == "running" and not shortage(spec.size, free_of(TOTAL, records)):
            record = starting(record)
        elif state == "ended":
            record = msgspec.structs.replace(starting(record), stage=Stage.ENDED)
        records.append(record)
    return records


def members(record: PodRecord, records: list[PodRecord]) -> list[PodRecord]:
    return [each for each in records if each.spec.group == record.spec.group and each.spec.job == record.spec.job]


@given(crowds())
def test_admitted_pods_fit_and_a_group_starts_with_its_minimum_together(
    records: list[PodRecord],
) -> None:
    for _ in range(len(records) + 1):
        start = admission(records, TOTAL).start
        if not start:
            break
        whole = PodSize(sum(r.size.cores for r in start), sum(r.size.memory_bytes for r in start))
        assert not shortage(whole, free_of(TOTAL, records))
        assert {record.stage for record in start} == {Stage.WAITING}
        if (group := start[0].spec.group) is not None and not any(r.attempt for r in members(start[0], records)):
            assert len(start) == group.least
            assert all(record in members(start[0], records) for record in start)
        else:
            assert len(start) == 1
        started = {record.uid for record in start}
        records = [starting(record) if record.uid in started else record for record in records]
    assert not admission(records, TOTAL).start


@given(crowds())
def test_a_waiting_pod_shows_the_reason(records: list[PodRecord]) -> None:
    while (decided := admission(records, TOTAL)).start:
        started = {record.uid for record in decided.start}
        records = [starting(record) if record.uid in started else record for record in records]
    waiting = [record for record in records if record.stage is Stage.WAITING]
    assert decided.why.keys() == {record.uid for record in waiting} and all(decided.why.values())
    for record in waiting:
        of_group = members(record, records) if record.spec.group else []
        if not of_group or any(each.attempt for each in of_group):
            assert shortage(record.size, free_of(TOTAL, records))


@given(crowds())
def test_the_pod_of_the_highest_priority_that_could_start_by_itself_starts_first(records: list[PodRecord]) -> None:
    free = free_of(TOTAL, records)
    fitting = [r for r in records if r.stage is Stage.WAITING and r.spec.group is None and not shortage(r.size, free)]
    start = admission(records, TOTAL).start
    if fitting:
        assert start and start[0].spec.priority >= max(record.spec.priority for record in fitting)
