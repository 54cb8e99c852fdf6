"""Saves of a job: running saves, their stages and deadlines, and saves that were given up. Pure.

The stages of a save are pausing, writing and committing. Workers pause until every server has frozen its cut, which
does not change while they train on (DLRover-RM §5.2, flash checkpoint). A save that was given up while servers wrote is
*abandoned*: its folder is deleted when no process writes into it any more. A save whose commit has not ended in time is
*unknown*: it is valid if its record is found complete later. These machines get reports about servers and workers, but
do not depend on the membership.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import xxhash

from elastrec.platform.master.machine.effects import DiscardRecord
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.directive import SaveOrder
from elastrec.platform.transport.messages.job import SavedPart

PAUSING, WRITING, COMMITTING = "pausing", "writing", "committing"


class Base(msgspec.Struct, frozen=True):
    """The record on which the next save may build, and the length of its chain of deltas."""

    order_id: str
    uri: str
    deltas: int = 0


class Save(msgspec.Struct, kw_only=True):
    """A running save.

    Attributes:
        quiesce: whether workers pause for it now; if they never do, its positions are known when it begins.
        stage: workers finish their steps (`pausing`), servers write (`writing`), the manifest follows (`committing`).
        since: when the stage began or was restarted; begun: when the first stage began.
        version: directive version that every worker must reach before servers may write.
        positions: of the shards when all workers had paused; `rows` trained until then, all epochs.
        frozen: servers that have frozen their cut, which contains no later pushes.
        in_memory: servers whose parts are in the memory of their nodes, and are not durable yet.
        parts: parts reported by servers, by pod name.
        cut_time: when the positions were taken.
        unsaved: seconds of training and of waiting for rows between the last record and the cut.
        times: seconds of the job until the cut, by part.
        base: the record on which it may build; None: it is a full record.
    """

    order_id: str
    uri: str
    step: int
    is_final: bool
    quiesce: bool
    stage: str
    version: int
    since: float
    begun: float = 0.0
    positions: Positions | None = None
    rows: int = 0
    frozen: list[str] = []
    in_memory: list[str] = []
    cut_time: float = 0.0
    parts: dict[str, SavedPart] = {}
    unsaved: tuple[float, float] = (0.0, 0.0)
    times: dict[str, float] = {}
    base: Base | None = None

    @property
    def order(self) -> SaveOrder | None:
        """The order for servers; None until all workers have paused."""
        if self.stage == PAUSING:
            return None
        return SaveOrder(self.order_id, self.uri, self.base.order_id if self.base else "")

    def enter(self, stage: str, time: float) -> None:
        """The next stage begins."""
        self.stage, self.since = stage, time

    def problems(self) -> list[str]:
        """Why servers could not write their parts."""
        return [f"{pod}: {part.problem}" for pod, part in self.parts.items() if part.problem]

    def is_store_away(self) -> bool:
        """Whether no server could reach the store."""
        return all(part.store_away for part in self.parts.values() if part.problem)


class Abandoned(msgspec.Struct, kw_only=True):
    """The folder of a save that was given up, until it can be deleted.

    Attributes:
        version: a server that has reached this directive does not begin a part of it any more.
        writers: pods that may be writing into it, with the incarnations of their processes.
        is_committing: whether its manifest may still be written; `may_be_complete`: whether it may already exist.
    """

    uri: str
    version: int
    writers: dict[str, str]
    is_committing: bool
    may_be_complete: bool

    def is_left_by(self, pod: str, incarnation: str, writing: str, reached_version: int, order_id: str) -> bool:
        """Whether a heartbeat shows that a writer has stopped writing into it for good."""
        # A server that has not reached that version may still begin to write.
        is_writer = self.writers.get(pod) == incarnation
        return is_writer and writing != order_id and reached_version >= self.version


class Saves(msgspec.Struct, kw_only=True):
    """All saves of a job.

    Attributes:
        record_template: URI of a record folder; other records of this job differ from it only in step and random part.
        under_way: running saves by order id, the oldest first; workers pause for at most one of them.
        unknown: saves since the last record whose commit has not ended in time.
        abandoned: by order id.
        next_save: when the next one is due on the job's clock; None: on request, or at the end.
        base: the last complete record; None: the next record is a full one.
        record_time: time of the state in the last complete record, on the job's clock; memory_time: time of the newest
            state that all servers have in memory or in a record. None: there is none.
        completed, failed: numbers of save orders; `final_failures`: consecutive failures of the final one.
        failed_since: when the first save after the last complete record failed; failures: how many did, or are unknown;
            problem: why the last one did.
        held_since: since when workers pause for the end of servers with notice (`notice`); None: they do not.
        last_seconds: duration of the last record during training, from the order to the manifest.
    """

    record_template: str
    under_way: dict[str, Save] = {}
    unknown: list[Save] = []
    abandoned: dict[str, Abandoned] = {}
    next_save: float | None = None
    is_asked: bool = False
    base: Base | None = None
    record_time: float | None = None
    memory_time: float | None = None
    completed: int = 0
    failed: int = 0
    final_failures: int = 0
    failed_since: float | None = None
    failures: int = 0
    problem: str = ""
    held_since: float | None = None
    last_seconds: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether workers pause for a save, or for the end of servers with notice."""
        return self.held_since is not None or self.quiescing is not None

    @property
    def quiescing(self) -> Save | None:
        """The save for which workers pause."""
        if not self.under_way:
            return None
        for save in self.under_way.values():
            if save.quiesce:
                return save
        return None

    def note_failure(self, reason: str, time: float) -> None:
        """A save has failed, or its outcome is unknown."""
        self.failed_since = time if self.failed_since is None else self.failed_since
        self.failures += 1
        self.problem = reason

    def note_success(self) -> None:
        """A record is complete."""
        self.failed_since, self.failures, self.problem = None, 0, ""

    def order_for(self, pod: str) -> SaveOrder | None:
        """The save order of a server: one part after the other, the oldest save first, until the save has ended."""
        order = None
        for save in self.under_way.values():
            order = save.order or order
            if order is not None and pod not in save.parts:
                break
        return order

    def content(self) -> tuple[tuple[str, bool, bool, int], ...]:
        """The contents of directives about saves depend only on this."""
        # If there are several saves, the order of a server depends on its parts.
        several = len(self.under_way) > 1
        saves = self.under_way.values()
        return tuple(
            (save.order_id, save.stage == PAUSING, save.quiesce, several and len(save.parts)) for save in saves
        )

    def begin(
        self,
        order_id: str,
        *,
        step: int,
        is_final: bool,
        version: int,
        time: float,
        cut: tuple[Positions, int] | None = None,
        deltas: int = 0,
    ) -> Save:
        """A save begins.

        Args:
            version: no server writes before all workers have reached it.
            deltas: maximum number of consecutive records that build on the one before; the final one never does.
            cut: positions of the shards, and trained rows, for the parts; then workers need not pause.

        Raises:
            ElastrecError: workers already pause for another save.
        """
        quiesce = cut is None
        if quiesce and self.quiescing is not None:
            raise ElastrecError(f"{order_id}: workers pause for {self.quiescing.order_id} already; end that save first")
        save = self.under_way[order_id] = Save(
            order_id=order_id,
            uri=record_uri(self.record_template, order_id, step),
            step=step,
            is_final=is_final,
            quiesce=quiesce,
            stage=PAUSING if quiesce else WRITING,
            version=version,
            since=time,
            begun=time,
            base=None if is_final or self.base is None or self.base.deltas >= deltas else self.base,
        )
        if cut is not None:
            save.positions, save.rows = cut
        if quiesce:
            self.is_asked, self.next_save = False, None
        return save

    def would_freeze(self, pod: str, order_id: str) -> bool:
        """Whether workers pause for a cut that this server has frozen, and the report is new."""
        save = self.under_way.get(order_id)
        return save is not None and save.quiesce and pod not in save.frozen

    def freeze(self, pod: str, order_id: str) -> None:
        """A server has frozen its cut."""
        if self.would_freeze(pod, order_id):
            self.under_way[order_id].frozen.append(pod)

    def would_copy(self, pod: str, order_id: str) -> bool:
        """Whether a server reports for the first time that its part is in memory."""
        save = self.under_way.get(order_id)
        return save is not None and pod not in save.in_memory

    def copied(self, pod: str, order_id: str, owners: Sequence[str]) -> None:
        """A part is in memory; `owners` are the servers whose parts are needed."""
        if not self.would_copy(pod, order_id):
            return
        save = self.under_way[order_id]
        save.in_memory.append(pod)
        if set(owners) <= {*save.in_memory, *save.parts}:
            self.held_in_memory(save)

    def held_in_memory(self, save: Save) -> None:
        """All servers have their parts of this save in memory, or in a record."""
        self.memory_time = max(save.cut_time, self.memory_time or 0.0)

    def would_take(self, pod: str, part: SavedPart | None) -> bool:
        """Whether a part belongs to a running save and is not known yet."""
        save = self.under_way.get(part.order_id) if part is not None else None
        return save is not None and pod not in save.parts

    def take(self, pod: str, part: SavedPart) -> None:
        """A server has written its part, or has failed; the first report counts, reports for other saves are void."""
        if (save := self.under_way.get(part.order_id)) is not None:
            save.parts.setdefault(pod, part)

    def end(self, save: Save) -> None:
        """Removes a save from the running ones."""
        del self.under_way[save.order_id]

    def take_unknown(self, order_id: str) -> Save | None:
        """Removes a save from the unknown ones."""
        save = next((save for save in self.unknown if save.order_id == order_id), None)
        self.unknown = [other for other in self.unknown if other is not save]
        return save

    def keep_time(self, time: float) -> None:
        """Restarts the time of the stages of all saves."""
        for save in self.under_way.values():
            save.since = time

    def abandon(self, save: Save, writers: Mapping[str, str], version: int, *, is_committing: bool = False) -> None:
        """Gives a save's folder up; `discard` deletes it.

        Args:
            writers: servers that may write, with their processes.
            version: of the first directive that does not order the save.
            is_committing: its manifest may still be written.
        """
        if save.stage == PAUSING:
            return
        left = {pod: process for pod, process in writers.items() if save.stage == WRITING and pod not in save.parts}
        self.abandoned[save.order_id] = Abandoned(
            uri=save.uri,
            version=version,
            writers=left,
            is_committing=is_committing,
            may_be_complete=is_committing,
        )

    def committing_has_ended(self, order_id: str) -> bool:
        """The commit of an abandoned save has ended; returns False if the save is not abandoned."""
        if order_id not in self.abandoned:
            return False
        self.abandoned[order_id].is_committing = False
        return True

    def discard(self, runs: Callable[[str, str], bool]) -> list[DiscardRecord]:
        """Abandoned folders into which no process writes any more.

        Args:
            runs: whether this process of a pod may still run.
        """
        effects = []
        for order_id, entry in list(self.abandoned.items()):
            entry.writers = {pod: process for pod, process in entry.writers.items() if runs(pod, process)}
            if not entry.writers and not entry.is_committing:
                del self.abandoned[order_id]
                effects.append(DiscardRecord(uri=entry.uri, may_be_complete=entry.may_be_complete))
        return effects

    def in_progress(self) -> list[str]:
        """URIs of records that are being written, or whose outcome is unknown."""
        saves = [*self.unknown, *self.under_way.values()]
        return [*(save.uri for save in saves), *(entry.uri for entry in self.abandoned.values())]


def record_uri(template: str, order_id: str, step: int) -> str:
    """A separate folder for every order, named as in the checkpoints room (step, job digits, random digits)."""
    folder, _, name = template.rpartition("/")
    _, job_digits, random_digits = name.split("-")
    own = xxhash.xxh32_hexdigest(f"{random_digits}/{order_id}".encode())
    return f"{folder}/{step:012d}-{job_digits}-{own}"
