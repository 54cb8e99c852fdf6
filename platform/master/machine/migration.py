"""Changes the servers while the job trains: prepare, copy, hand over, retire (DLRover-RM §5.2, seamless migration).
Pure.

A migration changes the number of servers, replaces servers (`succession`), or both. The wanted servers are compared
with the owners of buckets, so that one migration fulfils several requests. If more servers are requested while servers
are replaced, or hot buckets move, they are added by the next migration, so that the current one does not wait for them.

New servers start while the old ones serve (STARTING); servers that will own more copy their buckets (COPYING); then the
routing table changes, and they take the buckets over (HANDING_OVER); servers that own nothing any more leave. Before
the routing table changes, a failure does not change the owners. Afterwards, the loss of a server has the usual effect:
all return to the last record (`rollback`), and a migration that is still wanted begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from elastrec.platform.master.machine import rollback
from elastrec.platform.master.machine.effects import Decided, Effect
from elastrec.platform.master.machine.events import PodReported, ServerHot
from elastrec.platform.master.pods import losses, requests
from elastrec.platform.master.pods.membership import Member, MemberStage
from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.specs.metrics import MigrationMetrics, Phase, Role
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.some import some
from elastrec.platform.transport.messages.directive import COPY_SHARE, TakeFrom, TakeOrder

if TYPE_CHECKING:
    from elastrec.platform.master.machine.ownership import Ownership
    from elastrec.platform.master.machine.state import JobState

STARTING, COPYING, HANDING_OVER = "starting", "copying", "handing over"
_RELIEF_COPY_SHARE = 0.5
"""See COPY_SHARE; for buckets of a hot server. The share does not change how much time requests lose in total, and the
job is slow until the buckets have moved.
"""


class Migration(msgspec.Struct, kw_only=True):
    """A running migration.

    Attributes:
        order_id: of the orders to the servers that take buckets over.
        begun, since: when it began, and when its stage began.
        moves: names of new owners by virtual bucket, if buckets leave a hot server; empty: servers change, and all
            share the buckets.
        count: number of servers, if it stays the same while servers are replaced or hot buckets move; 0: it changes.
        servers: the future owners, in the order of the routing table; owners, dense_owners: for each virtual and dense
            bucket, an index into them. Empty while it is STARTING.
        sources: by the server that takes buckets, and by the server that gives them: virtual and dense buckets.
        copied, taken: servers that have little left to copy, and those that have taken their buckets over.
        progressed: time of the last progress within its stage (`stalls`); 0: none.
        advances: reported progress of copying servers (see CopyProgress), by name.
    """

    order_id: str
    begun: float
    since: float
    stage: str = STARTING
    moves: dict[int, str] = {}
    count: int = 0
    servers: list[str] = []
    owners: list[int] = []
    dense_owners: list[int] = []
    sources: dict[str, dict[str, tuple[list[int], list[int]]]] = {}
    copied: list[str] = []
    taken: list[str] = []
    progressed: float = 0.0
    advances: dict[str, int] = {}

    def order_of(self, pod: str, addresses: dict[str, str]) -> TakeOrder | None:
        """The order of a server that takes buckets over; None if it takes none."""
        sources = self.sources.get(pod)
        if not sources:
            return None
        return TakeOrder(
            self.order_id,
            [TakeFrom(name, addresses.get(name, ""), *buckets) for name, buckets in sources.items()],
            _RELIEF_COPY_SHARE if self.moves else COPY_SHARE,
        )

    def content(self) -> tuple[object, ...]:
        """Its contents in directives."""
        return self.order_id, self.stage


def is_possible(state: JobState) -> bool:
    """Whether buckets can change servers now."""
    return state.phase is Phase.TRAINING


def step(state: JobState, effects: list[Effect]) -> bool:
    """Takes one step if one is due; true when something changed and another may be due."""
    migration = state.migration
    if migration is None:
        if is_possible(state) and not state.has_wanted_servers:
            _begin(state, effects)
            return True
        return False
    is_unwanted = _is_unwanted(state, migration)
    if migration.stage != HANDING_OVER and (is_unwanted or not is_possible(state)):
        unwanted = "other servers are wanted" if migration.moves else "other servers are not wanted any more"
        reason = unwanted if is_unwanted else f"the job {plain_words.phase(state.phase)}"
        cancel(state, reason, effects)
        return True
    if migration.stage == STARTING:
        return _copy_when_started(state, migration, effects)
    if migration.stage == COPYING:
        if any(not _is_up(state, name) for name in migration.servers) or not _is_wanted(state, migration):
            # A server that was to take buckets has been replaced, or other servers are wanted.
            _enter(state, migration, STARTING)
            return True
        if set(migration.sources) <= set(migration.copied) and not state.saves.under_way:
            _hand_over(state, migration, effects)
            return True
    elif set(migration.sources) <= set(migration.taken):
        _end(state, migration, effects)
        return True
    return False


def _is_unwanted(state: JobState, migration: Migration) -> bool:
    if not migration.moves:
        return state.has_wanted_servers
    # Otherwise buckets would move to a server that is to leave, and would have to move again.
    return _count(state) < migration.count or any(server.outgoing for server in state.owners())


def _count(state: JobState) -> int:
    """The number of owners after this migration, or after the next one if there is none."""
    wanted = state.wanted_shape[Role.PARAMETER_SERVER].count
    return min(wanted, state.migration.count or wanted) if state.migration is not None else wanted


def may_relieve(state: JobState) -> bool:
    """Whether buckets can leave a hot server now: nothing else changes, and the job file allows it.

    Not soon after a try that made no progress, because it would probably fail again.
    """
    if state.time < state.relief_after:
        return False
    is_free = state.migration is None and state.has_wanted_servers
    return state.plan.relieves_hot_servers and is_free and is_possible(state)


def relieve(state: JobState, event: ServerHot, effects: list[Effect]) -> None:
    """Moves buckets of a hot server to existing servers; has no effect if servers are changing or have changed."""
    servers, ownership = state.ownership.servers, state.ownership
    if not may_relieve(state):
        return
    is_known = event.ownership_epoch == ownership.epoch and set(event.moves.values()) <= set(servers)
    if not is_known or {server.name for server in targets(state)} != set(servers):
        return
    inputs = {
        "server": event.server,
        "ratio": round(event.ratio, 3),
        "ratio_after": round(event.ratio_after, 3),
        "buckets": {str(bucket): name for bucket, name in event.moves.items()},
        "size_bytes": event.size_bytes,
        "price_seconds": round(event.price_seconds, 3),
    }
    effects.append(Decided(decision="server_relieved", inputs=inputs))
    state.relieved = state.time
    _begin(state, effects, event.moves)


def blocks_saves(state: JobState) -> bool:
    """Whether buckets are being handed over; a record of this moment would contain some of them twice, or not at
    all."""
    return state.migration is not None and state.migration.stage == HANDING_OVER


def deadline(state: JobState) -> float | None:
    """When a hand-over is late."""
    if not blocks_saves(state):
        return None
    assert state.migration is not None
    return state.migration.since + state.plan.restore_timeout_seconds


def ticked(state: JobState, effects: list[Effect]) -> None:
    """Gives up a hand-over that does not end: all servers return to the last record."""
    late = deadline(state)
    if late is None or late > state.time:
        return
    assert state.migration is not None
    lacking = sorted(set(state.migration.sources) - set(state.migration.taken))
    rollback.recover(state, f"{', '.join(lacking)} did not take its buckets over in time", effects)


def would_take(state: JobState, report: PodReported) -> bool:
    """Whether a report has new information."""
    return bool(_lists_without(state, report))


def take_report(state: JobState, report: PodReported) -> None:
    """Records which buckets a server has copied and taken over."""
    for servers in _lists_without(state, report):
        servers.append(report.pod)


def _lists_without(state: JobState, report: PodReported) -> list[list[str]]:
    """The lists (of servers that have copied, or have taken over) to which the report's pod must be added."""
    migration = state.migration
    if migration is None or report.pod not in migration.sources:
        return []
    said = (report.copied_order_id, migration.copied), (report.taken_order_id, migration.taken)
    return [servers for order_id, servers in said if order_id == migration.order_id and report.pod not in servers]


def is_lost_with(state: JobState, pod: str) -> bool:
    """Whether the loss of a server loses buckets that it has given away, because not all of their new owners have
    them."""
    migration = state.migration
    if migration is None or migration.stage != HANDING_OVER:
        return False
    return any(pod in givers for taker, givers in migration.sources.items() if taker not in migration.taken)


def process_replaced(state: JobState, pod: str) -> None:
    """A server's process was replaced, so its copied rows are lost."""
    migration = state.migration
    if migration is not None and migration.stage == COPYING and (pod in migration.sources):
        _enter(state, migration, STARTING)


def keep_time(state: JobState) -> None:
    """Restarts the time of a hand-over."""
    if blocks_saves(state):
        assert state.migration is not None
        state.migration.since = state.time


def metrics(state: JobState, time: float) -> MigrationMetrics | None:
    """The migration for people; None if there is none."""
    migration, owners = state.migration, state.ownership.servers
    if migration is None:
        return None
    future = migration.servers if migration.stage == HANDING_OVER else [server.name for server in targets(state)]
    # After the hand-over has begun, leaving servers do not own buckets any more, and joining servers do.
    leaving = {giver for givers in migration.sources.values() for giver in givers} | set(owners)
    joining = {server.name for server in state.membership.servers() if server.made_for} | (set(future) - set(owners))
    return MigrationMetrics(
        stage=migration.stage,
        leaving=tuple(sorted(leaving - set(future))),
        joining=tuple(sorted(joining & set(future))),
        seconds=time - migration.begun,
        stage_seconds=time - migration.since,
    )


def waiting(state: JobState, time: float) -> str:
    """What a change of servers waits for, and for how long; empty if there is none."""
    migration = state.migration
    if migration is None:
        return ""
    if migration.stage == STARTING:
        names = [server.name for server in targets(state) if not _is_up(state, server.name)]
    else:
        names = sorted(
            set(migration.sources) - set(migration.copied if migration.stage == COPYING else migration.taken)
        )
    count = _count(state)
    shown = metrics(state, time)
    assert shown is not None
    what = f"{len(migration.moves)} hot buckets" if migration.moves else f"to {count} parameter servers"
    instead = f", {some(shown.joining)} for {some(shown.leaving)}" if shown.joining and shown.leaving else ""
    of = f" of {some(names)}" if names else ""
    return f"{what}{instead}: {migration.stage}{of} for {time - migration.since:.0f} s"


def cancel(state: JobState, reason: str, effects: list[Effect]) -> None:
    """Cancels the migration; servers that were to own buckets and are not wanted leave."""
    migration = state.migration
    if migration is None:
        return
    inputs: dict[str, Any] = {"order": migration.order_id, "stage": migration.stage, "reason": reason}
    if migration.stage == STARTING:
        # Its servers have not been announced yet.
        inputs |= {"owners": list(state.ownership.servers), "servers": [server.name for server in targets(state)]}
    state.migration = None
    effects.append(Decided(decision="migration_cancelled", inputs=inputs))
    if state.has_wanted_servers:
        _dismiss(state, effects)


def dismiss_spare(state: JobState, effects: list[Effect]) -> None:
    """Servers that own nothing leave, if no change of servers is running or wanted."""
    if state.migration is None and state.has_wanted_servers and state.ownership.servers:
        _dismiss(state, effects)


def _begin(state: JobState, effects: list[Effect], moves: dict[int, str] | None = None) -> None:
    order_id = f"move-{state.phases.next_order()}"
    before, after = len(state.ownership.servers), state.wanted_shape[Role.PARAMETER_SERVER].count
    state.migration = Migration(
        order_id=order_id, begun=state.time, since=state.time, moves=moves or {}, count=before if before == after else 0
    )
    inputs = {"order": order_id, "before": before, "after": after}
    effects.append(Decided(decision="migration_begun", inputs=inputs))


def targets(state: JobState) -> list[Member]:
    """The future owners in the order of the routing table; a replacement takes the place of the server that leaves.

    The first server distributes the rounds of bsp, so its replacement also takes buckets from it.
    """
    count, owners = _count(state), state.ownership.servers
    staying = {server.name: server for server in state.membership.servers() if server.stays}
    chosen = [staying.pop(name, None) for name in owners]
    others = iter(sorted(staying.values(), key=lambda server: server.index))
    filled = [server or next(others, None) for server in chosen]
    return [server for server in [*filled, *others] if server is not None][:count]


def _is_wanted(state: JobState, migration: Migration) -> bool:
    return [server.name for server in targets(state)] == migration.servers


def _is_up(state: JobState, name: str) -> bool:
    member = state.membership.members.get(name)
    return member is not None and member.is_registered and bool(member.address)


def _enter(state: JobState, migration: Migration, stage: str) -> None:
    if stage == STARTING:
        migration.order_id = f"move-{state.phases.next_order()}"
        migration.servers, migration.sources, migration.copied, migration.advances = [], {}, [], {}
    migration.stage, migration.since = stage, state.time


def _copy_when_started(state: JobState, migration: Migration, effects: list[Effect]) -> bool:
    future = targets(state)
    if missing := _count(state) - len(future):
        requests.add_pods(state, Role.PARAMETER_SERVER, missing)
        return True
    if any(not _is_up(state, server.name) for server in [*future, *state.owners()]):
        return False
    if any(server.awaits_size for server in future):
        # A server that cannot be resized in place will own nothing.
        return False
    ownership = state.ownership
    migration.servers = [server.name for server in future]
    if migration.moves and not {*migration.moves.values(), *ownership.servers} <= set(migration.servers):
        cancel(state, "its servers are others now", effects)
        return True
    migration.owners, migration.dense_owners = _new_owners(migration, ownership)
    migration.sources = {}
    for number, (before, after) in enumerate(
        ((ownership.owners, migration.owners), (ownership.dense_owners, migration.dense_owners))
    ):
        for bucket, (old, new) in enumerate(zip(before, after, strict=True)):
            giver, taker = ownership.servers[old], migration.servers[new]
            if giver != taker:
                migration.sources.setdefault(taker, {}).setdefault(giver, ([], []))[number].append(bucket)
    _enter(state, migration, COPYING)
    inputs = {
        "order": migration.order_id,
        "owners": list(ownership.servers),
        "servers": list(migration.servers),
        "buckets": sum(len(rows) for sources in migration.sources.values() for rows, _ in sources.values()),
        "started_seconds": round(state.time - migration.begun, 3),
    }
    effects.append(Decided(decision="migration_copies", inputs=inputs))
    return True


def _new_owners(migration: Migration, ownership: Ownership) -> tuple[list[int], list[int]]:
    """For each virtual and each dense bucket, an index into the migration's servers."""
    places, before = {name: place for place, name in enumerate(migration.servers)}, ownership.servers
    if migration.moves:
        # The other buckets stay where they are, even if servers have different numbers of them.
        names = [migration.moves.get(bucket, before[old]) for bucket, old in enumerate(ownership.owners)]
        return [places[name] for name in names], [places[before[old]] for old in ownership.dense_owners]
    owners, dense_owners = (
        balanced_owners(len(owned), len(places), [places.get(before[old]) for old in owned])
        for owned in (ownership.owners, ownership.dense_owners)
    )
    return owners, dense_owners


def _hand_over(state: JobState, migration: Migration, effects: list[Effect]) -> None:
    inputs = {"order": migration.order_id, "copied_seconds": round(state.time - migration.since, 3)}
    state.ownership.move(migration.servers, migration.owners, migration.dense_owners)
    _enter(state, migration, HANDING_OVER)
    effects.append(Decided(decision="migration_hands_over", inputs={**inputs, "epoch": state.ownership.epoch}))


def _end(state: JobState, migration: Migration, effects: list[Effect]) -> None:
    state.migration, state.given_up = None, ""
    inputs = {
        "order": migration.order_id,
        "servers": len(migration.servers),
        "seconds": round(state.time - migration.begun, 3),
        "hand_over_seconds": round(state.time - migration.since, 3),
    }
    effects.append(Decided(decision="migration_ended", inputs=inputs))
    _dismiss(state, effects)


def _dismiss(state: JobState, effects: list[Effect]) -> None:
    """Servers that own nothing, and are not future owners, leave."""
    for server in state.membership.servers():
        if server.name not in state.ownership.servers and not server.retiring:
            state.membership.move(server, MemberStage.RETIRING)
            losses.dismiss(state, server, effects, delete=True)
