"""A simulation of everything around a master's state machine, without threads. Pods follow orders; `disturbing` adds
failures.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.clusters.pods import EndReason, Placement, PodPhase, PodSpec
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import AnswerLease, CommitRecord, DiscardRecord, Effect
from elastrec.platform.master.machine.leasing import answer_unchanged
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.master.pods.operations import PodOperations
from elastrec.platform.master.pods.wanted import MEMBER_ROLES, WantedPod, compare, wanted
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.transport.messages.directive import Directive, Mode
from elastrec.platform.transport.messages.job import RestoreProblem, SavedPart, Shard, ShardProgress
from tests.platform.clusters.fleets import new_fleet
from tests.shapes import shape
from tests.splits import length_of, progress_of


def plan(**changes: Any) -> JobPlan:
    values: dict[str, Any] = {
        "job_id": "j",
        "shape": shape(),
        "virtual_buckets": 64,
        "is_synchronous": False,
        "start_record": "",
        "record_template": "file:///store/j/records/000000000000-abcdef01-12345678",
        "save_interval_seconds": 20.0,
        "lease_seconds": 60.0,
        "save_timeout_seconds": 40.0,
        "restore_timeout_seconds": 40.0,
        "migration_timeout_seconds": 7200.0,
        "shard_attempts": 50,
        "pod_restarts": 40,
    }
    rows = {"training_rows": 130, "evaluation_rows": 25, "shard_rows": 10, "epochs": 1, "shuffle": True, "seed": 1}
    rows |= {name: changes.pop(name) for name in rows if name in changes}
    training, evaluation, split_rows = rows.pop("training_rows"), rows.pop("evaluation_rows"), rows.pop("shard_rows")
    values["training"] = RowRanges(rows=training, split_rows=split_rows, **rows)  # type: ignore[arg-type]
    values["evaluation"] = RowRanges(rows=evaluation, split_rows=split_rows)
    return JobPlan(**(values | changes))


def bad_rows(count: int) -> int:
    """How many of the first `count` rows of either stream are bad."""
    return (count + 6) // 10


class World:
    """Everything around a master, without threads: pods that follow orders, one action at a time.

    A worker pushes rows before it reports them, and may still follow an outdated directive. A record has the parameters
    at the time of the servers' write; its positions must count exactly the rows pushed until then (`_push`,
    `_check_record`).

    Attributes:
        damaged: URIs of records that no server can restore.
        hung: servers whose store does not answer: they freeze, but write no part and restore nothing.
        stuck: servers that do not freeze either.
        stalled: servers that copy none of the buckets that they must take over.
        effects: all effects; `discarded`: URIs of folders that the master has ordered to delete.
    """

    def __init__(self, job_plan: JobPlan, mischief: random.Random | None = None) -> None:
        self.state = JobState.new(job_plan)
        self.plane = new_fleet(mischief)
        self.plane.on_gone = self._process_ends
        self._is_reconciling = False
        self._forget_observations()
        self.time = 0.0
        self.events: list[events.Event] = []
        self.up: dict[str, dict[str, Any]] = {}
        self.commits: list[CommitRecord] = []
        self.phases = [Phase.PENDING]
        self.serial = 0
        self.damaged: set[str] = set()
        self.hung: set[str] = set()
        self.stuck: set[str] = set()
        self.stalled: set[str] = set()
        self.effects: list[Effect] = []
        self.discarded: list[str] = []
        self.handle(events.TermBegun(time=0.0, term=1, address="master:1"))
        self.handle(events.Begun(time=0.0))

    def _forget_observations(self) -> None:
        """Another master process knows nothing of the cluster."""
        self.plane.master_restarts()
        self.observed = Observed()
        self.operations = PodOperations(
            self.plane, self._spec, lambda make: self.handle(make(self.time)), self.observed, contextlib.nullcontext()
        )

    @staticmethod
    def _spec(pod: WantedPod) -> PodSpec:
        avoided = Placement(avoid_node_names=pod.avoids_nodes, is_required=True) if pod.avoids_nodes else None
        return PodSpec(name=pod.name, job="j", role=pod.role, command=("x",), size=pod.size, placement=avoided)

    def _process_ends(self, name: str, uid: str) -> None:
        if name in self.up and self.up[name]["uid"] == uid:
            del self.up[name]

    @property
    def waiting(self) -> list[str]:
        """Uids of pods that were created and do not run yet."""
        return [uid for uid, pod in self.plane.pods.items() if pod.phase is PodPhase.PENDING and not pod.is_ending]

    def reconcile(self) -> None:
        """What the reconciler does until there is nothing to do, or the cluster refuses for the moment."""
        if self._is_reconciling:
            return
        self._is_reconciling, failed = True, set[str]()
        try:
            while True:
                self.observed.begin_watch()
                for event in self.plane.watch(self.observed.resume, 0.0):
                    self.observed.take(event)
                actions = [a for a in compare(wanted(self.state), self.observed) if a.name not in failed]
                if not actions:
                    return
                for action in actions:
                    try:
                        self.operations.perform(action)
                    except ClusterError as error:
                        assert error.retryable
                        failed.add(action.name)
        finally:
            self._is_reconciling = False

    def is_swept(self) -> bool:
        kept = wanted(self.state).kept
        left = [pod for pod in self.plane.pods.values() if pod.role in MEMBER_ROLES and pod.name not in kept]
        return self.state.is_swept() and not left

    def handle(self, event: events.Event) -> list[Effect]:
        if isinstance(event, events.Restarted):
            self._forget_observations()
        before = self.state.phases.generation
        effects = self.state.handle(event)
        self.effects += effects
        self.note(event, effects)
        if self.phases[-1] is not self.state.phase:
            self.phases.append(self.state.phase)
        assert self.state.phases.generation >= before
        for effect in effects:
            if isinstance(effect, CommitRecord):
                self.commits.append(effect)
            elif isinstance(effect, DiscardRecord):
                writers = [name for name, pod in self.up.items() if pod["uri"] == effect.uri]
                assert not writers, f"{effect.uri} is deleted while {writers} write into it"
                self.discarded.append(effect.uri)
        self.reconcile()
        return effects

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        """What is kept of an event that was handled."""
        self.events.append(event)

    def directive(self, name: str) -> Directive:
        """What the pod's process is ordered."""
        return self.state.directive(name, self.up[name]["incarnation"])

    def start_pod(self) -> None:
        if self.waiting:
            pod = self.plane.pods[self.waiting[0]]
            self.plane.start(pod.uid)
            self.up[pod.name] = {"role": pod.role, "restored": "", "shards": [], "saved": "", "generation": 0}
            self.up[pod.name] |= {"writing": "", "uri": "", "transfers": 0, "reached": 0, "frozen": ""}
            self.serial += 1
            self.up[pod.name] |= {"incarnation": str(self.serial), "uid": pod.uid}
            self.up[pod.name] |= {"started_cores": math.ceil(self.plane.pods[pod.uid].size.cores)}
            self.register(pod.name)

    def register(self, name: str) -> None:
        pod = self.up[name]
        self.handle(
            events.PodRegistered(
                time=self.time,
                pod=name,
                role=pod["role"],
                incarnation=pod["incarnation"],
                address=f"{name}:1" if pod["role"] is Role.PARAMETER_SERVER else "",
                node=self.plane.pods[pod["uid"]].node,
                restored_order_id=pod["restored"],
                started_cores=pod["started_cores"] if pod["role"] is Role.PARAMETER_SERVER else 0,
            )
        )

    def act(self, name: str, *, late: bool = False, loses_answer: bool = False) -> None:
        """One heartbeat or lease of a pod that follows orders.

        Args:
            late: a worker trains and pushes with its present directive, before its next heartbeat.
            loses_answer: whether the answer to its request for shards is lost; it repeats the request, even after a new
                directive.
        """
        pod = self.up[name]
        directive = self.state.directive(name, pod["incarnation"])
        if late and pod["role"] is Role.WORKER and directive.mode is not Mode.EXIT:
            directive = pod.get("directive", directive)
        else:
            late, pod["directive"] = False, directive
        if directive.mode is Mode.EXIT:
            self.kill(name, end=EndReason.COMPLETED, exit_code=0)
            return
        if pod["generation"] != directive.generation:
            pod["generation"], pod["shards"] = directive.generation, []
            pod.pop("unanswered", None)
        saved, damaged, progress = None, None, []
        if pod["role"] is Role.PARAMETER_SERVER:
            saved, damaged = self._obey(name, pod, directive)
        elif not late and self.lets_go(name):
            progress = [self.progress(shard, offset) for shard, offset in pod["shards"] if offset > shard.offset]
            pod["shards"], pod["let_go"] = [], self._orders_version(name, pod["incarnation"])
            pod.pop("unanswered", None)
        elif directive.mode in (Mode.TRAIN, Mode.EVALUATE):
            kind = "train" if directive.mode is Mode.TRAIN else "evaluate"
            pod["shards"] = [entry for entry in pod["shards"] if entry[0].kind == kind]
            if not pod["shards"]:
                self._lease(name, pod, kind, loses_answer=loses_answer)
                return
            shard, offset = pod["shards"][0]
            end = min(length_of(shard), offset + 6)
            self._push(pod, shard, offset, end)
            pod["shards"][0][1] = end
            if late:
                return
            if end == length_of(shard):
                pod["shards"].pop(0)
            progress = [self.progress(shard, end)]
        elif late:
            return
        elif "unanswered" in pod:
            self._lease(name, pod, pod["unanswered"].kind, loses_answer=loses_answer)
            return
        else:
            progress = [self.progress(shard, offset) for shard, offset in pod["shards"] if offset > shard.offset]
            pod["shards"] = [entry for entry in pod["shards"] if entry[1] < length_of(entry[0])]
        self.handle(
            events.PodReported(
                time=self.time,
                pod=name,
                incarnation=pod["incarnation"],
                generation=pod["generation"],
                reached_version=pod["reached"] if pod["role"] is Role.PARAMETER_SERVER else directive.version,
                progress=progress,
                frozen_order_id=pod["frozen"],
                saved=saved,
                restored_order_id=pod["restored"],
                damaged=damaged,
                writing=pod["writing"],
                transfers=pod["transfers"],
                orders_version=self._orders_version(name, pod["incarnation"]),
                let_go_version=pod.get("let_go", 0),
                copied_order_id=pod.get("copied", ""),
                taken_order_id=pod.get("taken", ""),
                copying=pod.get("copying"),
                ends_in_seconds=max(0.0, pod["ends_at"] - self.time) if pod.get("ends_at") is not None else None,
            )
        )

    def _chain(self, uri: str) -> list[str]:
        """The records that a server reads for this one, in its order: a full one first, then deltas."""
        bases = {record.uri: record.base for record in self.state.recovery.records}
        chain = [uri]
        while base := bases.get(chain[0]):
            chain.insert(0, base)
        return chain

    def _lease(self, name: str, pod: dict[str, Any], kind: str, *, loses_answer: bool) -> None:
        asked = pod.pop("unanswered", None)
        if asked is None or asked.kind != kind:
            self.serial += 1
            asked = events.ShardsAsked(
                time=self.time,
                pod=name,
                incarnation=pod["incarnation"],
                generation=pod["generation"],
                request_id=str(self.serial),
                count=2,
                kind=kind,
            )
        asked = msgspec.structs.replace(asked, time=self.time)
        # As the service does it: what changes nothing is answered and not journalled.
        unchanged = answer_unchanged(self.state, asked)
        effects = [unchanged] if unchanged is not None else self.handle(asked)
        (answer,) = [effect for effect in effects if isinstance(effect, AnswerLease)]
        if loses_answer:
            pod["unanswered"] = asked
        else:
            pod["shards"] = [[shard, shard.offset] for shard in answer.shards]

    def give_notice(self, name: str, ends_in_seconds: float = 60.0) -> None:
        """A server is sent SIGTERM, and says so with its next heartbeats."""
        self.up[name]["ends_at"] = self.time + ends_in_seconds

    def lets_go(self, name: str) -> bool:
        """Whether a worker is ordered to be idle."""
        orders = self.state.orders_of(name, self.up[name]["incarnation"])
        return orders is not None and orders.is_idle

    def _orders_version(self, name: str, incarnation: str) -> int:
        orders = self.state.orders_of(name, incarnation)
        return orders.version if orders is not None else 0

    def _obey(
        self, name: str, pod: dict[str, Any], directive: Directive
    ) -> tuple[SavedPart | None, RestoreProblem | None]:
        """What a server does; one whose store hangs goes on where it hung once the store answers."""
        if name not in self.hung:
            # A part that was written this late is of an order that may be in force no more.
            pod["writing"], pod["uri"], pod["transfers"] = "", "", pod["transfers"] + 1
        restore, save = directive.restore, directive.save
        if restore is not None and restore.order_id != pod["restored"]:
            if name in self.hung:
                return None, None
            if damaged := next((uri for uri in self._chain(restore.uri) if uri in self.damaged), None):
                return None, RestoreProblem(
                    order_id=restore.order_id, reason="checksum differs", is_damaged=True,
                    record=damaged if damaged != restore.uri else "",
                )  # fmt: skip
            pod["restored"] = restore.order_id
        if save is not None and save.order_id != pod["saved"] and name not in self.stuck:
            if save.order_id != pod["frozen"] and self.state.saves.under_way[save.order_id].quiesce:
                self._check_record()
            pod["frozen"] = save.order_id
            if name in self.hung:
                if not pod["writing"]:
                    pod["writing"], pod["uri"] = save.order_id, save.uri
                return None, None
            pod["saved"], pod["reached"] = save.order_id, directive.version
            return SavedPart(order_id=save.order_id, manifest_json=b"{}"), None
        if directive.take is not None:
            is_due = directive.take.is_due(directive.routing, name)
            if is_due or name not in self.stalled:
                pod["taken" if is_due else "copied"] = directive.take.order_id
        pod["reached"] = directive.version
        return None, None

    def _push(self, pod: dict[str, Any], shard: Shard, start: int, end: int) -> None:
        """Servers of another generation refuse a push."""
        save = self.state.saves.quiescing
        if shard.kind == "train" and start < end and pod["generation"] == self.state.phases.generation:
            assert save is None or save.positions is None, "rows are pushed under a record whose positions are taken"

    def _check_record(self) -> None:
        save = self.state.saves.quiescing
        assert save is not None and save.positions is not None
        queue = self.state.training
        positions = save.positions.of(queue.stream)
        assert positions is not None
        begun = {one.number: one.offset for one in positions.begun}
        for worker in self.state.membership.workers():
            # One that was given up and still runs is refused by the servers.
            pod = self.up.get(worker.name)
            if pod is None or pod["generation"] != self.state.phases.generation:
                continue
            for shard, offset in pod["shards"]:
                number = shard.split.number
                (handed_out,) = queue.splits.handed_out(positions.cursor, np.array([number]))
                counted = begun.get(number, length_of(shard) if handed_out else 0)
                assert shard.kind != "train" or offset <= counted, "a record without the positions of pushed rows"

    @staticmethod
    def progress(shard: Shard, offset: int) -> ShardProgress:
        """A worker's report; some rows are bad."""
        rows = shard.split.range
        bad = bad_rows(rows.start + offset) - bad_rows(rows.start + shard.offset)
        return msgspec.structs.replace(progress_of(shard, offset), bad_rows=bad)

    def tick(self) -> None:
        deadline = self.state.next_deadline()
        if deadline is not None and deadline <= self.time:
            self.handle(events.Ticked(time=self.time))

    def commit(self, succeed: bool = True) -> None:
        if self.commits:
            commit = self.commits.pop(0)
            order = commit.order_id
            if succeed:
                self.handle(events.RecordCommitted(time=self.time, order_id=order, base=commit.base))
            else:
                self.handle(events.RecordFailed(time=self.time, order_id=order, reason="disk full"))

    def kill(
        self, name: str, end: EndReason = EndReason.KILLED, exit_code: int | None = 137, message: str = ""
    ) -> None:
        """The pod's process ends, and the cluster says so."""
        uid = self.up.pop(name)["uid"]
        if message:
            self.plane.logs_of[name] = message
        self.plane.end(uid, end, exit_code)
        self.reconcile()

    def live_on(self, rounds: int = 1) -> None:
        """Everybody behaves: a pod starts, all that are up act, the store commits."""
        for _ in range(rounds):
            self.start_pod()
            for name in list(self.up):
                if name in self.up:
                    self.act(name)
            self.commit()

    def run_fairly(self, steps: int = 3000) -> None:
        """Everybody behaves from now on, the store too."""
        self.hung.clear()
        self.stalled.clear()
        self.plane.mischief = None
        for _ in range(steps):
            self.plane.settle()
            self.reconcile()
            if self.is_swept():
                return
            self.live_on()
            self.time += 0.5
            self.tick()
        raise AssertionError(f"the job hangs: {self.state.phase}, {self.state.training}")


def running(job_plan: JobPlan | None = None, rounds: int = 4) -> World:
    world = World(job_plan or plan())
    for _ in range(4):
        world.start_pod()
    for _ in range(rounds):
        for name in list(world.up):
            world.act(name)
    assert world.state.phase is Phase.TRAINING
    return world
