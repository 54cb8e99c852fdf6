"""Rounds of bsp while buckets move, in any order of events: all buckets get the same steps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Origin, Push, Share, Stamp
from elastrec.trainers.parameter_server.serving.attendance import Attendance, Attending, joined
from elastrec.trainers.parameter_server.serving.global_batch import Pushed
from elastrec.trainers.parameter_server.serving.gradients import Gradient
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, Marks
from elastrec.trainers.parameter_server.serving.pushes import Pushes, Standing
from tests.conftest import examples
from tests.trainers.parameter_server.running import job_spec

BUCKETS, SERVERS, BATCH = 6, 3, 4
Step = list[tuple[Origin, int]]
Histories = dict[int, list[Step]]
Action = Callable[[], None]


def spec_of(workers: int):
    return job_spec(
        training={"batch_size": BATCH, "consistency": {"mode": "bsp"}}, resources={"worker": {"count": workers}}
    )


@dataclass
class Table:
    """Who owns each bucket, under which epoch; the first server shares rounds out."""

    epoch: int
    owners: list[int]

    @property
    def servers(self) -> list[int]:
        return sorted(set(self.owners))


class Server:
    """Its pushes, and for each bucket that it owns the steps that were applied to it."""

    def __init__(self, spec) -> None:
        self.spec = spec
        self.epoch = -1
        self.histories: Histories = {}
        self._begin([])

    def _begin(self, marks: list[BucketMarks]) -> None:
        self.pushes = Pushes(self.spec, self._marks(marks))

    def _marks(self, marks: list[BucketMarks]) -> Marks:
        owned = np.zeros(BUCKETS, np.bool_)
        owned[list(self.histories)] = True
        return Marks(owned, np.zeros(0, np.bool_), marks)

    def start(self, table: Table, me: int) -> None:
        self.epoch = table.epoch
        self.histories = {bucket: [] for bucket, owner in enumerate(table.owners) if owner == me}
        self._begin([])

    def step(self) -> None:
        while (step := self.pushes.next_step()) is not None:
            if step.pushes:
                for bucket, history in self.histories.items():
                    lacking = [push for push in step.pushes if self._lacks(push.origin, bucket)]
                    if lacking:
                        history.append([(push.origin, push.gradient.samples) for push in lacking])
                self.pushes.applied(step.pushes)
            for push in step.round:
                push.is_released = True

    def _lacks(self, origin: Origin, bucket: int) -> bool:
        lacking = self.pushes.marks.lacking(origin)
        return lacking is None or bool(lacking[bucket])

    def give(self, table: Table, me: int) -> tuple[Attendance, list[BucketMarks], Histories]:
        """As `ParameterServer.give_away`, for all takers at once."""
        self.epoch = table.epoch
        self.pushes.begin_again()
        marks = self.pushes.marks.values()
        given = {bucket: steps for bucket, steps in self.histories.items() if table.owners[bucket] != me}
        for bucket in given:
            del self.histories[bucket]
        self.pushes.marks = self._marks(_within(marks, self.histories))
        return self.pushes.attendance(), _within(marks, given), given

    def take(self, table: Table, me: int, given: list[tuple[Attendance, list[BucketMarks], Histories]]) -> None:
        """As `ParameterServer.take_over`."""
        self.epoch = table.epoch
        mine = [bucket for bucket, owner in enumerate(table.owners) if owner == me]
        attendances = [attendance for attendance, _, _ in given]
        marks = [each for _, known, _ in given for each in _within(known, mine)]
        is_new = not self.histories
        known = [] if is_new else self.pushes.marks.values()
        for _, _, histories in given:
            self.histories.update({bucket: list(histories[bucket]) for bucket in histories if bucket in mine})
        if is_new:
            self._begin(marks)
        else:
            self.pushes.begin_again()
            attendances.insert(0, self.pushes.attendance())
            self.pushes.marks = self._marks([*known, *marks])
        self.pushes.attend(attendances)


def _within(marks: list[BucketMarks], buckets) -> list[BucketMarks]:
    return [BucketMarks([b for b in each.buckets if b in buckets], [], each.streams) for each in marks]


@dataclass
class Kept:
    """A push that not all servers are known to have applied."""

    origin: Origin
    share: Share
    leaves: bool
    lacking: set[int] = field(default_factory=set)


class Worker:
    """A worker as ParameterClient makes it: requests to one server are answered in their order, others in any order."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.process = WorkerProcess(name, "i")
        self.cluster = cluster
        self.rows, self.kept, self.made = 0, deque[Kept](), 0
        self.share: Share | None = None
        self.state, self.round = "away", -1
        self.lanes: dict[int, deque[Action | Kept]] = {}
        self.table = cluster.table
        self.is_leaving = False

    def connect(self) -> None:
        """Requests that are under way are forgotten; pushes that are kept go to the owners under the new table."""
        is_other, self.table = self.table.owners != self.cluster.table.owners, self.cluster.table
        self.lanes = {server: deque() for server in self.table.servers}
        for push in self.kept:
            if is_other:
                push.lacking = set(self.table.servers)
            for server in sorted(push.lacking):
                self.lanes[server].append(push)
        self.share = None
        # What it was about to do begins anew.
        self.state = {"away": "away", "leaving": "resting", "resting": "resting"}.get(self.state, "idle")

    def actions(self) -> list[Action]:
        found: list[Action] = [lambda server=server: self._reach(server) for server, lane in self.lanes.items() if lane]
        if any(self.lanes.values()):
            return found
        if self.state == "away":
            return [] if self.is_leaving else [self._arrive]
        if self.state == "resting":
            return [self._leave]
        if self.state == "idle":
            return [self._leave if self.is_leaving and self.share is None else self._ask]
        return [self._push]

    def _arrive(self) -> None:
        self.state = "idle"

    def _send(self, make: Callable[[int], Action]) -> None:
        for server in self.lanes:
            self.lanes[server].append(make(server))

    def _reach(self, number: int) -> None:
        """The first request of a lane reaches its server."""
        server, request = self.cluster.servers[number], self.lanes[number][0]
        if server.epoch > self.table.epoch:
            self.connect()
        elif server.epoch == self.table.epoch:
            if isinstance(request, Kept):
                if self._push_reaches(server, number, request) and request in list(self.lanes[number])[:1]:
                    self.lanes[number].popleft()
            else:
                request()

    def _push_reaches(self, server: Server, number: int, push: Kept) -> bool:
        """Whether it is answered."""
        pushes = server.pushes
        standing = pushes.standing(push.origin)
        if standing is Standing.UNKNOWN:
            assert pushes.consistency.join(self.process, 0)
            gradient = Gradient([], np.empty(0, np.float32), push.origin.end - push.origin.begin)
            stamp = Stamp(self.process.pod, "i", self.table.epoch, 1)
            request = Push(stamp, push.origin, gradient.samples, 0, share=push.share, leaves=push.leaves)
            pushes.take(Pushed(self.process, push.origin, gradient, push.share), request)
            server.step()
            standing = pushes.standing(push.origin)
        assert standing is not Standing.MISSING
        if standing is Standing.WAITING:
            return False
        reached = pushes.offsets([push.origin.split])[0]
        for each in self.kept:
            if each.origin.end <= reached:
                each.lacking.discard(number)
        while self.kept and not self.kept[0].lacking:
            self.kept.popleft()
        if number == self.table.servers[0] and push.origin.end == self.rows and not push.leaves:
            self.share = pushes.share(self.process)
        return True

    def _ask(self) -> None:
        """Joins all servers, names the latest of their rounds to all, and asks the first one for a share of it."""
        if self.share is not None:
            self.state = "sharing"
            return
        self.round, wanted = -1, set(self.lanes)
        sharing = self.table.servers[0]

        def join(server: int) -> Action:
            def reach() -> None:
                consistency = self.cluster.servers[server].pushes.consistency
                assert consistency.join(self.process, 0)
                self.round = max(self.round, consistency.first_round(self.process))
                wanted.discard(server)
                self.lanes[server].popleft()
                if not wanted:
                    self._send(name)

            return reach

        def name(server: int) -> Action:
            def reach() -> None:
                pushes = self.cluster.servers[server].pushes
                pushes.advance(self.process, self.round, BATCH if server == sharing else 0)
                self.cluster.servers[server].step()
                if server == sharing:
                    share = pushes.share(self.process)
                    self.share = share if share is not None and share.round == self.round else None
                self.lanes[server].popleft()
                if not any(self.lanes.values()) and self.share is not None:
                    self.state = "sharing"

            return reach

        self._send(join)

    def _push(self) -> None:
        """Trains the share; the push says when it is the worker's last one."""
        assert self.share is not None
        begin, self.rows = self.rows, self.rows + self.share.rows
        origin = Origin("train", int(self.process.pod[1:]), 1, begin, self.rows, begin == 0, False)
        push = Kept(origin, self.share, self.is_leaving, set(self.lanes))
        self.kept.append(push)
        self.made, self.share = self.made + 1, None
        self.state = "resting" if self.is_leaving else "idle"
        self._send_push(push)

    def _send_push(self, push: Kept) -> None:
        for server in self.lanes:
            self.lanes[server].append(push)

    def _leave(self) -> None:
        """Leaves all servers, and again as long as pushes wait."""
        self.state, self.share = "leaving", None

        def leave(server: int) -> Action:
            def reach() -> None:
                here = self.cluster.servers[server]
                here.pushes.leave(self.process)
                here.step()
                reached = here.pushes.offsets([("train", int(self.process.pod[1:]))])[0]
                for each in self.kept:
                    if each.origin.end <= reached:
                        each.lacking.discard(server)
                while self.kept and not self.kept[0].lacking:
                    self.kept.popleft()
                self.lanes[server].popleft()
                if not any(self.lanes.values()):
                    self.state = "resting" if self.kept else "away"

            return reach

        self._send(leave)


class Cluster:
    def __init__(self, workers: int, chance: random.Random) -> None:
        self.chance = chance
        spec = spec_of(2)
        self.table = Table(1, balanced_owners(BUCKETS, chance.randint(1, SERVERS), [None] * BUCKETS))
        self.servers = [Server(spec) for _ in range(SERVERS)]
        for number in self.table.servers:
            self.servers[number].start(self.table, number)
        self.workers = [Worker(f"w{number}", self) for number in range(workers)]
        for worker in self.workers:
            worker.connect()
        self.under_way: list[Action] = []

    def begin_move(self) -> None:
        """As the master orders it: givers give one by one, then takers take over, in any order, while workers train."""
        count = self.chance.randint(1, SERVERS)
        numbers = sorted(self.chance.sample(range(SERVERS), count))
        if self.table.servers[0] not in numbers:
            numbers = sorted({*numbers[1:], self.table.servers[0]})
        places = {number: place for place, number in enumerate(numbers)}
        owners = [
            numbers[place]
            for place in balanced_owners(BUCKETS, len(numbers), [places.get(owner) for owner in self.table.owners])
        ]
        before, after = self.table, Table(self.table.epoch + 1, owners)
        pairs = [(old, new) for old, new in zip(before.owners, after.owners, strict=True) if old != new]
        if not pairs or {old for old, _ in pairs} & {new for _, new in pairs}:
            return
        givers, takers = sorted({old for old, _ in pairs}), sorted({new for _, new in pairs})
        given: dict[int, tuple[Attendance, list[BucketMarks], Histories]] = {}

        def give(number: int) -> None:
            given[number] = self.servers[number].give(after, number)
            self.table = after

        def take(number: int) -> None:
            sources = sorted({old for old, new in pairs if new == number})
            for source in sources:
                if source not in given:
                    give(source)
            self.servers[number].take(after, number, [given[source] for source in sources])
            self.table = after

        def stay(number: int) -> None:
            self.servers[number].epoch = after.epoch

        others = [number for number in after.servers if number not in givers and number not in takers]
        steps: list[Action] = [lambda n=number: stay(n) for number in others]
        steps += [lambda n=number: take(n) for number in takers]
        steps += [lambda n=number: None if n in given else give(n) for number in givers]
        self.chance.shuffle(steps)
        self.under_way = steps

    def act(self, *, moves: bool) -> bool:
        """One event; false: there is none."""
        if self.under_way and self.chance.random() < 0.2:
            self.under_way.pop()()
            return True
        if moves and not self.under_way and self.chance.random() < 0.03:
            self.begin_move()
        actions = [action for worker in self.workers for action in worker.actions()]
        if not actions:
            return False
        self.chance.choice(actions)()
        return True

    def histories(self) -> Histories:
        return {bucket: steps for server in self.servers for bucket, steps in server.histories.items()}


def train_to_the_end(cluster: Cluster, *, leaves_at_random: bool = False) -> list[Step]:
    """Workers train while buckets move, and then leave; returns the steps of one bucket."""
    for _ in range(1500):
        if leaves_at_random and cluster.chance.random() < 0.01:
            worker = cluster.chance.choice(cluster.workers)
            worker.is_leaving = not worker.is_leaving
        cluster.act(moves=True)
    for worker in cluster.workers:
        worker.is_leaving = True
    for _ in range(20_000):
        if not cluster.act(moves=False) and not cluster.under_way:
            break
    assert [worker.state for worker in cluster.workers] == ["away"] * len(cluster.workers), "they wait for each other"
    assert all(not worker.kept for worker in cluster.workers)
    histories = cluster.histories()
    assert sorted(histories) == list(range(BUCKETS))
    for steps in histories.values():
        pushed = [origin for step in steps for origin, _ in step]
        assert len(pushed) == len(set(pushed)) == sum(worker.made for worker in cluster.workers)
        assert all(sum(rows for _, rows in step) <= 2 * BATCH for step in steps)
    assert cluster.table.epoch > 5
    return histories[0]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_every_bucket_sees_the_same_steps_wherever_it_is_and_each_push_once(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(chance.randint(1, 4), chance)
    steps = train_to_the_end(cluster)
    assert all(history == steps for history in cluster.histories().values())


@pytest.mark.parametrize("seed", range(examples(40)))
def test_workers_that_join_and_leave_during_moves_never_hang_and_each_push_counts_once(seed: int) -> None:
    """A step that ends because all workers have left may end elsewhere for a bucket that moves in that moment."""
    chance = random.Random(seed)
    train_to_the_end(Cluster(chance.randint(2, 4), chance), leaves_at_random=True)


def test_a_step_that_one_server_ended_incomplete_ends_on_the_others_before_the_next_one() -> None:
    """The first worker leaves while the second one joins: only the first server has no member for a moment."""
    table = Table(1, [0, 1] * (BUCKETS // 2))
    servers = [Server(spec_of(2)) for _ in range(2)]
    for number, server in enumerate(servers):
        server.start(table, number)
    leaving, joining = WorkerProcess("w0", "i"), WorkerProcess("w1", "i")
    rows = dict.fromkeys((leaving, joining), 0)

    def train(worker: WorkerProcess) -> Share:
        number = max(server.pushes.consistency.first_round(worker) for server in servers)
        for server in servers:
            server.pushes.advance(worker, number, BATCH)
            server.step()
        share = servers[0].pushes.share(worker)
        assert share is not None
        begin = rows[worker]
        rows[worker] += share.rows
        origin = Origin("train", int(worker.pod[1:]), 1, begin, rows[worker], begin == 0, False)
        gradient = Gradient([], np.empty(0, np.float32), share.rows)
        for server in servers:
            request = Push(Stamp(worker.pod, "i", 1, 1), origin, share.rows, 0, share=share)
            server.pushes.take(Pushed(worker, origin, gradient, share), request)
            server.step()
        return share

    for server in servers:
        assert server.pushes.consistency.join(leaving, 0)
    assert not train(leaving).is_last
    for server in servers:
        if server is servers[1]:
            assert server.pushes.consistency.join(joining, 0)
        server.pushes.leave(leaving)
        server.step()
    assert servers[0].pushes.consistency.join(joining, 0)
    assert [len(servers[number].histories[number]) for number in (0, 1)] == [1, 0], "the step ends on one server"
    assert [train(joining).is_last, train(joining).is_last] == [False, True]
    for server in servers:
        for steps in server.histories.values():
            assert [[samples for _, samples in step] for step in steps] == [[BATCH], [BATCH, BATCH]]


def test_a_server_that_takes_from_two_continues_in_the_earlier_round() -> None:
    a, b, c = (WorkerProcess(name, "i") for name in "abc")
    first = Attendance(
        round=3, shared_out=4, shares=[(a, Share(4, 2, True))], left=[c],
        members=[Attending(a, 1, 10, 5, 4, 8), Attending(b, 1, 12, 7, 3, 8)],
    )  # fmt: skip
    other = Attendance(round=5, left=[a], members=[Attending(b, 2, 90, 6, 4, 0), Attending(c, 3, 91, 2, 4, 0)])
    assert joined([first, other]) == Attendance(
        round=3, shared_out=4, shares=[(a, Share(4, 2, True))],
        members=[Attending(a, 1, 10, 5, 4, 8), Attending(b, 2, 12, 7, 3, 8), Attending(c, 3, 10, 2, 4, 0)],
    )  # fmt: skip
    # A server that has never heard of them has completed its rounds without them.
    strangers = joined([Attendance(round=6), other])
    assert [(member.clock, member.first_round) for member in strangers.members] == [(90, 6), (91, 6)]
    assert strangers.round == 5
