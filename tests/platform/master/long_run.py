"""A million random events in consecutive jobs with disturbances: the state machines against their journal.

    python -m tests.platform.master.long_run --seed 1 --events 1000000

Every event goes through the state machine and into a real journal; the hash of the following state is stored. When a
job is over, its journal is read from disk and replayed, with an encoding and decoding in every step:

    b(0) = the new state's bytes        b(k) = encode(handle(decode(b(k-1)), event k))

and hash(b(k)) must equal the stored hash for every k. So for every k, the first k events give the state that the master
had. decode(b(j)) is the content of a snapshot after event j, so a replay from a snapshot gives the same state, for
every j < k. A second journal tests snapshots and deletions in the file itself: it makes many snapshots, a reader loads
it at random moments (a random prefix each time), and whenever the master is restarted, the job continues with the state
that `Journal.load` returns.

After every event, the invariants of `check` are true, and the positions of every record include all rows that its
parameters contain (see `World`). The ledger of a successful job contains every row exactly once.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from elastrec.platform.master.machine import events, stages
from elastrec.platform.master.machine.effects import Decided, Effect, RecordAttempt
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.shards import ShardQueue
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.membership import MemberStage
from elastrec.platform.master.reporting.ledger import ledger_table, running_attempts, streams_now
from elastrec.platform.master.service.journal import Journal, decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions
from elastrec.platform.transport.messages.observer import WorkerOrder
from tests.platform.master.disturbing import disturb
from tests.platform.master.world import World, plan
from tests.shapes import change, shape

NEVER = 2**60
_REMEMBERED = 40
_MOST_ACTS = 8_000
_REPEATABLE = (
    events.PodRegistered | events.PodReported | events.ShardsAsked | events.PodFailed | events.PodSilent
    | events.PodOrdered | events.PodDeleted | events.PodSeen | events.PodGone | events.PodResized | events.ResizeRefused
    | events.RecordCommitted | events.RecordFailed
)  # fmt: skip
"""What a network may deliver late or twice."""
_GOOD_REASONS = ("pod_restarts", "killed for memory", "final record", "marked as poisoned", "cannot be created")


@dataclass
class Figures:
    """What a run has seen. `digest` is equal for equal seeds."""

    events: int = 0
    jobs: int = 0
    master_restarts: int = 0
    loaded_prefixes: int = 0
    rollbacks: int = 0
    records: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    digest: str = ""


def check(state: JobState) -> None:
    """What holds after every event, whatever happened."""
    members = state.membership.members
    for member in members.values():
        is_owner = member.name in state.ownership.servers
        if member.stage is MemberStage.SERVING:
            assert member.is_registered and (member.role is Role.WORKER or is_owner), f"{member.name} serves nothing"
        elif member.stage is MemberStage.ASKED:
            assert not member.is_registered
        else:
            assert member.stage is MemberStage.RETIRING or not is_owner, f"{member.name} is {member.stage}"
        version = member.orders.version if member.orders is not None else 0
        assert member.let_go_version <= member.orders_version <= version, f"{member.name} has orders that nobody gave"
    at_hand = [m for m in members.values() if m.role is Role.WORKER and m.is_registered and not m.retiring]
    has_one_at_work = not all(member.is_idle for member in at_hand)
    assert has_one_at_work or not at_hand or state.phase.is_final, "all workers are idle"
    serving = [(m.role, m.index) for m in members.values() if m.stage is MemberStage.SERVING]
    assert len(set(serving)) == len(serving), f"two pods serve in one place: {serving}"
    for queue in state.queues:
        _check_queue(queue)
        # When a job is over, what was under way stays in the ledger as unfinished.
        is_kept = queue.held.keys() <= members.keys() or state.phase.is_final
        assert is_kept, f"a pod without a place holds shards: {queue.held}"
    writing = [server for save in state.saves.under_way.values() for server in stages.writers(state, save)]
    is_waiting = state.saves.quiescing is not None or writing or stages.restorers(state)
    assert state.next_deadline() is not None or not is_waiting, "a stage without a deadline"
    record = state.recovery.record
    assert record is None or _cursor(record.positions) <= state.training.cursor, "behind the last record"


def _cursor(positions: Positions) -> int:
    training = positions.of(TRAINING_STREAM)
    return training.cursor if training is not None else 0


def _check_queue(queue: ShardQueue) -> None:
    assert not queue.doing.keys() & queue.returned.keys(), "a shard is leased and to do at once"
    assert 0 <= queue.done <= queue.cursor <= queue.total
    assert dict(Counter(lease.pod for lease in queue.doing.values())) == queue.held
    assert queue.deadlines.keys() == queue.held.keys()
    for number, lease in queue.doing.items():
        assert 0 <= lease.begin <= lease.offset < queue.splits.range(number).length and lease.attempt >= 1


class JournalledWorld(World):
    """A world whose master writes two journals, one with all events and one with snapshots, and is restored from the
    latter.

    Args:
        folder: empty folder for the journals.
    """

    def __init__(self, job_plan: JobPlan, folder: Path, chance: random.Random, figures: Figures) -> None:
        self.chance = chance
        self.figures = figures
        self.hashes: list[int] = []
        self.recent: list[events.Event] = []
        self._snapshot_every = chance.choice([3, 50, 700])
        self._compact_path = folder / "compact.sqlite"
        self.whole = self._begin(Journal(folder / "whole.sqlite", snapshot_every=NEVER), job_plan)
        self.compact = self._begin(self._open_compact(), job_plan)
        self.uids: dict[str, str] = {}
        super().__init__(job_plan, chance)

    @staticmethod
    def _begin(journal: Journal, job_plan: JobPlan) -> Journal:
        journal.begin(job_plan)
        journal.start()
        return journal

    def _open_compact(self) -> Journal:
        return Journal(self._compact_path, snapshot_every=self._snapshot_every)

    def handle(self, event: events.Event) -> list[Effect]:
        if isinstance(event, events.Restarted):
            self._restart_master()
        return super().handle(event)

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        lines = [effect for effect in effects if isinstance(effect, RecordAttempt | Decided)]
        body = encode_state(self.state)
        self.hashes.append(xxhash.xxh3_64_intdigest(body))
        self.whole.append(event, lines, bytes)
        self.compact.append(event, lines, lambda: body)
        self.figures.events += 1
        self.figures.kinds[type(event).__name__] += 1
        if isinstance(event, _REPEATABLE):
            self.recent = [*self.recent[-_REMEMBERED:], event]
        check(self.state)
        for member in self.state.membership.members.values():
            if member.uid:
                first = self.uids.setdefault(member.name, member.uid)
                assert first == member.uid, f"two pods had the name {member.name}"

    def _restart_master(self) -> None:
        self.compact.close()
        self.compact = self._open_compact()
        loaded = self.compact.load()
        assert loaded is not None and self.compact.last == len(self.hashes)
        self._compare(loaded, len(self.hashes))
        self.compact.start()
        self.state = loaded
        self.figures.master_restarts += 1

    def load_a_prefix(self) -> None:
        """Reads what is committed at this moment, while the writer goes on."""
        reader = Journal(self._compact_path)
        loaded = reader.load()
        assert loaded is not None
        if reader.last:
            self._compare(loaded, reader.last)
        reader.close()
        self.figures.loaded_prefixes += 1

    def _compare(self, state: JobState, sequence: int) -> None:
        found = xxhash.xxh3_64_intdigest(encode_state(state))
        assert found == self.hashes[sequence - 1], f"the first {sequence} events give another state"

    def replay_every_prefix(self) -> None:
        """See the module's docstring."""
        self.whole.wait(self.whole.last)
        body = encode_state(JobState.new(self.state.plan))
        sequence = 0
        for sequence, event in self.whole.events():
            state = decode_state(body)
            state.handle(event)
            body = encode_state(state)
            found = xxhash.xxh3_64_intdigest(body)
            assert found == self.hashes[sequence - 1], f"the first {sequence} events give another state"
        assert sequence == len(self.hashes), f"{len(self.hashes) - sequence} events are missing"

    def check_ledger(self) -> None:
        """Every row of a job that succeeded counts exactly once per epoch."""
        attempts, after = [], 0
        while page := self.whole.ledger(after):
            attempts.append(page)
            after += len(page)
        table = ledger_table([*attempts, running_attempts(self.state)], streams_now(self.state)).to_pandas()
        kept = table.groupby("kind", observed=True)["kept"].sum()
        assert kept["train"] == self.state.plan.training.total_rows, kept
        assert kept["evaluate"] == self.state.plan.evaluation.rows, kept

    def close(self) -> None:
        self.whole.close()
        self.compact.close()


def random_plan(chance: random.Random) -> JobPlan:
    """A job of any shape, patient with losses or not."""
    return plan(
        training_rows=chance.choice([7, 130, 2_000, 20_000]),
        evaluation_rows=chance.choice([1, 25, 300]),
        shard_rows=chance.choice([10, 13, 64]),
        epochs=chance.randint(1, 3),
        shuffle=chance.random() < 0.7,
        seed=chance.randrange(2**31),
        shape=shape(chance.randint(1, 4), chance.randint(1, 3)),
        is_synchronous=chance.random() < 0.3,
        save_interval_seconds=chance.choice([0.0, 5.0, 200.0]),
        lease_seconds=chance.choice([2.0, 60.0]),
        shard_attempts=chance.choice([4, 100_000]),
        pod_restarts=chance.choice([30, 100_000, 100_000]),
        slow_pod_moves=chance.choice([0, 2]),
        most_server_cores=chance.choice([None, 2.0]),
    )


def torment(world: JournalledWorld, chance: random.Random) -> None:
    """One act: mostly those of `disturb`, and what an unreliable network and impatient people add to them."""
    what = chance.random()
    if what < 0.82:
        disturb(world, chance)
    elif what < 0.85:
        upset(world, chance)
    elif what < 0.95 and world.recent:
        late: Any = chance.choice(world.recent)
        world.handle(msgspec.structs.replace(late, time=world.time))
    elif what < 0.96:
        pod = chance.choice(sorted(world.state.membership.members) or ["nobody"])
        batch_size, scale = chance.choice([None, 1, 64]), chance.choice([0.5, 1.0])
        is_idle = chance.random() < 0.4
        order = WorkerOrder(
            batch_size=batch_size, learning_rate_scale=scale, is_idle=is_idle, resets=chance.random() < 0.5
        )
        if chance.random() < 0.5:
            world.handle(events.PodOrdered(time=world.time, pod=pod, order=order))
        else:
            order = msgspec.structs.replace(order, is_idle=None)
            world.handle(events.WorkersOrdered(time=world.time, order=order))
    elif what < 0.965:
        world.handle(events.OwnerChanged(time=world.time, owner=chance.choice(["", "a", "b"])))
    elif what < 0.97 and world.state.ownership.servers:
        # Measured under these owners, or under those before them.
        servers, epoch = world.state.ownership.servers, world.state.ownership.epoch - (chance.random() < 0.2)
        moves = {chance.randrange(len(world.state.ownership.owners)): chance.choice(servers) for _ in range(3)}
        world.handle(
            events.ServerHot(
                time=world.time, server=servers[0], ratio=2.0, ratio_after=1.1, moves=moves, ownership_epoch=epoch
            )
        )
    elif what < 0.973 and (members := sorted(world.state.membership.members)):
        # Of this process, or of one that the pod had before.
        slow = world.state.membership.members[chance.choice(members)]
        incarnation = slow.incarnation if chance.random() < 0.8 else "an earlier one"
        world.handle(
            events.PodSlow(
                time=world.time, pod=slow.name, incarnation=incarnation, ratio=3.0, seconds_per_row=0.3,
                others_seconds_per_row=0.1,
            )
        )  # fmt: skip
    elif what < 0.99:
        world.handle(events.Measured(time=world.time, waiting_share=chance.random()))
    elif what < 0.9999:
        world.time += chance.choice([0.0, 0.5, 3.0])
        world.tick()
    elif what < 0.99995:
        world.handle(events.StopAsked(time=world.time, reason="an impatient person"))
    elif world.waiting:
        pod = world.plane.pods[world.waiting[0]].name
        world.handle(events.PodRefused(time=world.time, pod=pod, reason="no such node"))


def upset(world: JournalledWorld, chance: random.Random) -> None:
    """One act of an unreliable control plane."""
    what, plane = chance.random(), world.plane
    if what < 0.6:
        plane.settle()
    elif what < 0.75 and plane.pods:
        plane.vanish(chance.choice(sorted(plane.pods)))
    elif what < 0.85:
        plane.forget_events()
    elif what < 0.9 and plane.pods:
        (plane.evict if chance.random() < 0.6 else plane.lose_node)(chance.choice(sorted(plane.pods)))
    else:
        asked = change(
            worker_cores=chance.choice([1.0, 2.0]),
            parameter_server_cores=chance.choice([1.5, 2.5]),
            worker_memory_bytes=2000,
        )
        world.handle(events.ShapeAsked(time=world.time, change=asked))
    world.reconcile()


def proceed(world: JournalledWorld, chance: random.Random) -> None:
    """One act of a quiet moment."""
    what = chance.random()
    if world.waiting:
        world.start_pod()
    elif what < 0.9 and world.up:
        world.act(chance.choice(sorted(world.up)), late=chance.random() < 0.1, loses_answer=chance.random() < 0.1)
    elif what < 0.95:
        world.commit()
    else:
        world.time += 0.5
        world.tick()


def live_through_one_job(folder: Path, seed: str, figures: Figures) -> int:
    """One job from its beginning to its end; returns the hash of all its states."""
    chance = random.Random(seed)
    world = JournalledWorld(random_plan(chance), folder, chance, figures)
    try:
        quiet = chance.choice([0.0, 0.8, 0.98])
        for _ in range(chance.randrange(_MOST_ACTS)):
            (proceed if chance.random() < quiet else torment)(world, chance)
            if chance.random() < 0.002:
                world.load_a_prefix()
            if world.is_swept():
                break
        world.run_fairly(100_000)
        state = world.state
        assert not state.membership.members and state.phase.is_final
        assert not any(entry.writers for entry in state.saves.abandoned.values())
        if state.phase is Phase.FAILED:
            assert any(words in state.failure for words in _GOOD_REASONS), state.failure
        world.replay_every_prefix()
        if state.phase is Phase.SUCCEEDED:
            world.check_ledger()
        figures.jobs += 1
        figures.ends[str(state.phase)] += 1
        figures.rollbacks += state.recovery.rollbacks
        figures.records += state.saves.completed
    finally:
        world.close()
    return xxhash.xxh3_64_intdigest(b"".join(value.to_bytes(8, "little") for value in world.hashes))


def long_run(seed: int, least_events: int) -> Figures:
    """Runs jobs until the number of events is reached.

    Raises:
        AssertionError: an invariant or a replay failed; the note names the job, which `--job` runs alone.
    """
    figures = Figures()
    digest = xxhash.xxh3_64()
    number = 0
    while figures.events < least_events:
        digest.update(play(seed, number, figures).to_bytes(8, "little"))
        number += 1
    figures.digest = digest.hexdigest()
    return figures


def play(seed: int, number: int, figures: Figures) -> int:
    """Job `number` of a seed, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return live_through_one_job(Path(folder), f"{seed}/{number}", figures)
        except BaseException as error:
            error.add_note(f"play it alone: python -m tests.platform.master.long_run --seed {seed} --job {number}")
            raise


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=1_000_000, help="at least so many")
    parser.add_argument("--job", type=int, help="only this one of the seed's jobs")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    if asked.job is None:
        figures = long_run(asked.seed, asked.events)
    else:
        figures = Figures()
        play(asked.seed, asked.job, figures)
    print(json.dumps({"seed": asked.seed, **vars(figures), "seconds": round(time.monotonic() - began, 1)}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
