"""Where a job is, and the two orders that stop the world: save and restore. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

from elastrec.platform.master.shards import Positions
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.job_messages import RestoreOrder, SavedPart

ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.STARTING, Phase.FAILED, Phase.STOPPED}),
    Phase.STARTING: frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.FAILED, Phase.STOPPED}),
    Phase.TRAINING: frozenset({Phase.SAVING, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.RECOVERING: frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.FAILED, Phase.STOPPED}),
    Phase.SAVING: frozenset({Phase.EVALUATING, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.EVALUATING: frozenset({Phase.SUCCEEDED, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}
"""The life of a job as a table: from each phase, where it may go."""

NUMBERS_PER_TERM = 10**9
"""A journal that begins in a term numbers its versions, generations, orders and routing epochs from here times the
terms before: so that nothing of an earlier journal equals anything of a later one, and all later ones are higher."""
PAUSING, WRITING, COMMITTING = "pausing", "writing", "committing"


class Save(msgspec.Struct, kw_only=True):
    """A save order on its way.

    Attributes:
        stage: workers finish their steps (`pausing`), servers write (`writing`), the manifest follows (`committing`).
        since: when the stage began.
        version: directive version that every worker must reach before servers may write.
        positions: of the shards at the moment when everybody stood still; `rows` that were trained then, all epochs.
        parts: what the servers reported, by pod name.
        unsaved: seconds of training and of waiting for rows that only this save holds, once it is unknown.
    """

    order_id: str
    uri: str
    step: int
    is_final: bool
    stage: str
    version: int
    since: float
    positions: Positions | None = None
    rows: int = 0
    parts: dict[str, SavedPart] = {}
    unsaved: tuple[float, float] = (0.0, 0.0)


class Abandoned(msgspec.Struct, kw_only=True):
    """The folder of a save that was given up, until it can be deleted.

    Attributes:
        version: a server that has reached this directive begins no part of it any more.
        writers: pods that may be writing into it, with the incarnations of their processes.
        is_committing: its manifest may still be written; `may_be_complete`: or is there already.
    """

    uri: str
    version: int
    writers: dict[str, str]
    is_committing: bool
    may_be_complete: bool


class CompleteRecord(msgspec.Struct, frozen=True):
    """A record of this job that a rollback can return to."""

    uri: str
    positions: Positions
    is_final: bool
    step: int


class Phases(msgspec.Struct, kw_only=True):
    """Phase, term, generation, and the orders in force.

    Attributes:
        term: of the master; 0 before it has taken one.
        version: of the directives; grows with everything that changes one.
        resume: the phase that follows the start, or a recovery.
        records: the newest complete ones of this job that are not known to be damaged, oldest first.
        damaged: URIs of records that a server could not restore because of their bytes.
        record_template: URI of a record folder; those of this job differ from it in step and random part only.
        next_save: when the next record is due on the job's clock; None: when asked for, or at the end.
        failed_saves, final_failures: of all save orders; of the final one in a row.
        saved_rows: trained rows of the record that holds most of them, all epochs.
        unknown: saves since the last record whose commit has not ended in time.
        abandoned: by order id.
    """

    record_template: str
    term: int = 0
    phase: Phase = Phase.PENDING
    since: float = 0.0
    seconds: dict[str, float] = {}
    version: int = 1
    generation: int = 0
    resume: Phase = Phase.TRAINING
    restore: RestoreOrder
    save: Save | None = None
    records: list[CompleteRecord] = []
    damaged: list[str] = []
    orders: int = 1
    next_save: float | None = None
    save_asked: bool = False
    saves: int = 0
    failed_saves: int = 0
    final_failures: int = 0
    saved_rows: int = 0
    rollbacks: int = 0
    unknown: list[Save] = []
    abandoned: dict[str, Abandoned] = {}

    @property
    def record(self) -> CompleteRecord | None:
        """The one that a rollback returns to."""
        return self.records[-1] if self.records else None

    def add_record(self, record: CompleteRecord, keep: int) -> None:
        """A record is complete; so many are kept to go back to."""
        self.records = [*self.records, record][-keep:]

    def give_up_record(self, uri: str) -> None:
        """A record is damaged: no rollback returns to it."""
        self.damaged.append(uri)
        self.records = [record for record in self.records if record.uri != uri]

    def move(self, to: Phase, time: float) -> None:
        """The only way to change the phase.

        Raises:
            ElastrecError: the table of allowed transitions does not hold this one.
        """
        if to not in ALLOWED[self.phase]:
            raise ElastrecError(f"a job cannot go from {self.phase} to {to}; allowed: {sorted(ALLOWED[self.phase])}")
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + max(0.0, time - self.since)
        self.phase, self.since = to, time
        self.version += 1

    def time_in_phases(self, time: float) -> dict[str, float]:
        """Seconds by phase until now."""
        current = self.seconds.get(self.phase, 0.0) + (0.0 if self.phase.is_final else max(0.0, time - self.since))
        return {**self.seconds, self.phase: current}

    def begin_save(self, *, step: int, is_final: bool, time: float) -> Save:
        """Tells the workers to stand still; a record is not written before they do."""
        self.orders += 1
        self.version += 1
        order_id = f"save-{self.orders}"
        self.save = Save(
            order_id=order_id,
            uri=record_uri(self.record_template, order_id, step),
            step=step,
            is_final=is_final,
            stage=PAUSING,
            version=self.version,
            since=time,
        )
        self.save_asked = False
        self.next_save = None
        return self.save

    def begin_first_term(self, term: int, resumed: Sequence[CompleteRecord]) -> None:
        """The numbers of a journal that begins in this term, and the records that it begins with."""
        first = (term - 1) * NUMBERS_PER_TERM
        self.term = term
        self.version, self.generation, self.orders = first + 1, first, first + 1
        self.records = list(resumed)
        uri = self.record.uri if self.record else self.restore.uri
        self.restore = RestoreOrder(f"restore-{self.orders}", uri)
        if self.record is not None and self.record.is_final:
            self.resume = Phase.EVALUATING

    def begin_next_term(self, term: int) -> None:
        """The same journal goes on in a higher term: versions of the two are told apart by it."""
        self.term = term
        self.version += 1

    def begin_restore(self, uri: str) -> RestoreOrder:
        """A new generation: every server forgets what it has and loads a record; `uri` empty: starts from nothing."""
        self.orders += 1
        self.version += 1
        self.generation += 1
        self.rollbacks += 1
        self.save = None
        self.restore = RestoreOrder(f"restore-{self.orders}", uri)
        return self.restore


def record_uri(template: str, order_id: str, step: int) -> str:
    """A folder of its own for every order, in the naming of the checkpoints room (step, job digits, random digits)."""
    folder, _, name = template.rpartition("/")
    _, job_digits, random_digits = name.split("-")
    own = xxhash.xxh32_hexdigest(f"{random_digits}/{order_id}".encode())
    return f"{folder}/{step:012d}-{job_digits}-{own}"
