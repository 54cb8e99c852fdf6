"""The members of a job: one pod per place (role, index), its process, its replacements, their failure counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import islice

import msgspec

from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize
from elastrec.platform.transport.messages.directive import PodOrders


class MemberStage(StrEnum):
    """The stage of a member."""

    ASKED = "asked"  # its process has not registered
    STANDBY = "standby"  # a server that owns no buckets
    SERVING = "serving"
    RETIRING = "retiring"  # it was ordered to leave for good
    GONE = "gone"


ALLOWED: dict[MemberStage, frozenset[MemberStage]] = {
    MemberStage.ASKED: frozenset({MemberStage.STANDBY, MemberStage.SERVING, MemberStage.RETIRING, MemberStage.GONE}),
    MemberStage.STANDBY: frozenset({MemberStage.SERVING, MemberStage.RETIRING, MemberStage.GONE}),
    MemberStage.SERVING: frozenset({MemberStage.STANDBY, MemberStage.RETIRING, MemberStage.GONE}),
    MemberStage.RETIRING: frozenset({MemberStage.GONE}),
    MemberStage.GONE: frozenset(),
}
"""The allowed transitions between stages of a member."""


class Member(msgspec.Struct, kw_only=True):
    """A pod of a place. There may be several at one place; one of them serves.

    Attributes:
        restart: increases with every pod of the place, so that no name is used twice.
        uid: of the pod in the cluster; empty until the cluster has reported the pod.
        incarnation: of the registered process; empty until it has registered.
        started_cores: of a server: for which its process has started (see Register), so that it has locks for as many;
            0: unknown.
        cores, memory_bytes: granted, possibly more than requested, if a cluster rounds up; before the pod is created,
            the size with which it will be created.
        asked: the wanted size.
        awaits_size: whether the result of a resize is unknown; `size_asked`: when it was requested.
        outgoing: why another pod is to replace it while it works; empty: it stays. `outgoing_for`: the request.
        made_for: the request for which it was created; empty: it belongs to the job.
        avoids_nodes: names of nodes on which it must not run.
        oom_bytes: memory limit at which the predecessor was killed for memory; 0 if it ended otherwise, or after this
            pod has made progress.
        room_until: until when it waits for room with more memory than its predecessor; 0: it does not wait.
        starved: whether a worker found no shards to lease, so that it does not count in bsp and ssp steps.
        superseded: incarnations of replaced processes, which never count again.
        orders: of this pod only; None: it never had any. `orders_version`: of the orders that its process has;
            `let_go_version`: of the last orders under which it has released its shards.
        transfers: of a server, counted by its process (see Heartbeat); `active`: when the count last increased, or its
            process registered.
        ends_at: when its process will be ended, by its notice (see Heartbeat), on the job's clock; None: no notice.
        leaving_since: of a worker that was ordered to leave for good (RETIRING): when, or when it last reported
            progress, on the job's clock.
    """

    name: str
    role: Role
    index: int
    restart: int
    cores: float
    memory_bytes: int
    asked: PodSize
    created: float
    awaits_size: bool = False
    size_asked: float = 0.0
    outgoing: str = ""
    outgoing_for: str = ""
    made_for: str = ""
    avoids_nodes: list[str] = []
    uid: str = ""
    incarnation: str = ""
    started_cores: int = 0
    address: str = ""
    node: str = ""
    reached_version: int = 0
    oom_bytes: int = 0
    room_until: float = 0.0
    reason: str = ""
    starved: bool = False
    stage: MemberStage = MemberStage.ASKED
    superseded: list[str] = []
    orders: PodOrders | None = None
    orders_version: int = 0
    let_go_version: int = 0
    transfers: int = 0
    active: float = 0.0
    ends_at: float | None = None
    leaving_since: float = 0.0

    @property
    def has_notice(self) -> bool:
        """Whether its process has reported that it is about to be ended."""
        return self.ends_at is not None

    @property
    def retiring(self) -> bool:
        """Whether it was ordered to leave for good."""
        return self.stage is MemberStage.RETIRING

    @property
    def stays(self) -> bool:
        """Whether the job keeps it."""
        return not self.retiring and not self.outgoing

    @property
    def is_idle(self) -> bool:
        """Whether it was ordered to take no minibatch."""
        return self.orders is not None and self.orders.is_idle

    @property
    def is_registered(self) -> bool:
        return bool(self.incarnation)

    def is_held_by_another(self, incarnation: str) -> bool:
        """Whether a process of the pod other than this one registered last."""
        return self.is_registered and self.incarnation != incarnation


class LossStreak(msgspec.Struct, array_like=True):
    """Losses of one place since the job last made progress.

    Attributes:
        failures: the pod failed, was silent or was too slow.
        taken_away: the cluster or a user ended it.
    """

    failures: int = 0
    taken_away: int = 0


class Membership(msgspec.Struct, kw_only=True):
    """All places of a job.

    Attributes:
        members: by pod name.
        left: the last pod of each empty place, by `role/index`; shown when the job has ended.
        leaving: pods that were given up and may still run, by name; they have no place.
        ended: pods that end by themselves and are kept for their logs until the job succeeds.
        places: number of pods that each place has had, by `role/index`.
        revision: increases with every change of the wanted pods.
        edition: increases with every change of members in directives.
        losses: replaced pods and restarted processes by role, during the whole job.
        memory_kills: pods that exceeded their memory limit, during the whole job.
        streaks: by role and index, for places that were lost since the job last made progress.
    """

    job_id: str
    members: dict[str, Member] = {}
    left: dict[str, Member] = {}
    leaving: dict[str, Member] = {}
    ended: list[str] = []
    places: dict[str, int] = {}
    revision: int = 0
    edition: int = 0
    losses: dict[str, int] = {}
    memory_kills: int = 0
    streaks: dict[str, dict[int, LossStreak]] = {}

    def workers(self) -> list[Member]:
        return [member for member in self.members.values() if member.role is Role.WORKER]

    def has_one_worker_at_work(self) -> bool:
        """Whether exactly one worker's process is registered; does not check all of a thousand workers."""
        at_work = (member for member in self.members.values() if member.role is Role.WORKER and member.is_registered)
        return len(list(islice(at_work, 2))) == 1

    def servers(self) -> list[Member]:
        """Servers in the order of their places."""
        servers = [member for member in self.members.values() if member.role is Role.PARAMETER_SERVER]
        return sorted(servers, key=lambda member: member.index)

    def add(
        self,
        role: Role,
        index: int,
        size: PodSize,
        time: float,
        *,
        made_for: str = "",
        avoids_nodes: Sequence[str] = (),
    ) -> Member:
        """A new pod for a place."""
        place = f"{role}/{index}"
        restart = self.places.get(place, 0)
        self.places[place] = restart + 1
        self.left.pop(place, None)
        name = pod_name(self.job_id, role, index, restart)
        member = self.members[name] = Member(
            name=name,
            role=role,
            index=index,
            restart=restart,
            cores=size.cores,
            memory_bytes=size.memory_bytes,
            asked=size,
            created=time,
            made_for=made_for,
            avoids_nodes=list(avoids_nodes),
        )
        self.revision += 1
        return member

    def remove(self, name: str, *, delete: bool) -> Member:
        """Removes a pod from its place; it is to be deleted, or ends by itself and is kept for its logs."""
        member = self.members.pop(name)
        is_place_empty = not any((m.role, m.index) == (member.role, member.index) for m in self.members.values())
        if not member.retiring and is_place_empty:
            self.left[f"{member.role}/{member.index}"] = member
        self.edition += 1
        self.move(member, MemberStage.GONE)
        if delete:
            self.leaving[name] = member
        else:
            self.ended.append(name)
        self.revision += 1
        return member

    def move(self, member: Member, to: MemberStage) -> None:
        """Changes a member's stage; no other code does.

        Raises:
            ElastrecError: the table of allowed transitions does not contain this one.
        """
        if to is member.stage:
            return
        if to not in ALLOWED[member.stage]:
            allowed = sorted(ALLOWED[member.stage])
            raise ElastrecError(f"{member.name} cannot go from {member.stage} to {to}; allowed: {allowed}")
        member.stage = to
        self.edition += 1

    def registered(
        self, member: Member, incarnation: str, address: str, node: str, time: float, started_cores: int = 0
    ) -> None:
        """A process of the pod has registered, possibly again."""
        if member.incarnation != incarnation:
            member.reached_version, member.orders_version, member.let_go_version = 0, 0, 0
            member.starved = False
            member.transfers, member.active = 0, time
            member.ends_at = None
            self.edition += 1
        elif member.address != address:
            self.edition += 1
        member.incarnation, member.address, member.node = incarnation, address, node
        member.started_cores = started_cores
        member.room_until = 0.0
        if member.stage is MemberStage.ASKED:
            self.move(member, MemberStage.SERVING if member.role is Role.WORKER else MemberStage.STANDBY)

    def starve(self, member: Member, starved: bool, *, is_synchronous: bool) -> None:
        """A worker found no shards, or may find some again; without shards, others must not wait for it in bsp and
        ssp."""
        self.edition += is_synchronous and member.starved != starved
        member.starved = starved

    def order(self, member: Member, orders: PodOrders) -> bool:
        """Gives a pod orders of its own, under the next version; returns False if they change nothing."""
        before = member.orders or PodOrders(version=0)
        if msgspec.structs.replace(orders, version=before.version) == before:
            return False
        member.orders = msgspec.structs.replace(orders, version=before.version + 1)
        return True

    def seen(self, name: str, uid: str) -> None:
        """The cluster has the pod; the first uid counts."""
        member = self.members.get(name)
        if member is not None and not member.uid:
            member.uid = uid
            self.revision += 1

    def ask_for(self, member: Member, size: PodSize, time: float) -> None:
        """Sets the wanted size of a pod."""
        if size != member.asked:
            member.asked, member.size_asked = size, time
            member.awaits_size = size != PodSize(member.cores, member.memory_bytes)
        self.revision += 1

    def settle_for(self, member: Member, size: PodSize, time: float) -> None:
        """Sets the wanted size of a pod that has found no room."""
        if member.uid:
            self.ask_for(member, size, time)
            return
        member.cores, member.memory_bytes, member.asked = size.cores, size.memory_bytes, size
        self.revision += 1

    def granted(self, member: Member, size: PodSize, outcome_of: PodSize | None) -> None:
        """Sets the granted size of a pod; the wanted size does not change.

        Args:
            outcome_of: the requested size, if this is the result of a request; None: the result is not known yet.
        """
        member.cores, member.memory_bytes = size.cores, size.memory_bytes
        member.awaits_size = outcome_of != member.asked
        self.revision += 1

    def refused(self, member: Member) -> None:
        """A resize of a pod was refused."""
        member.asked, member.awaits_size = PodSize(member.cores, member.memory_bytes), False
        self.revision += 1

    def count_loss(self, member: Member, *, taken_away: bool) -> LossStreak:
        """Counts the loss of a place's pod; returns the place's losses since the job last made progress."""
        self.losses[member.role] = self.losses.get(member.role, 0) + 1
        streak = self.streaks.setdefault(member.role, {}).setdefault(member.index, LossStreak())
        if taken_away:
            streak.taken_away += 1
        else:
            streak.failures += 1
        return streak

    def made_progress(self, role: Role) -> None:
        """The job has made progress with the pods of a role, which resets their losses."""
        self.streaks.pop(role, None)
