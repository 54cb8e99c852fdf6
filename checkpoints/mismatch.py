"""Decides which parts of a record a job with a changed job file can keep. Pure; called before any pod starts, for
people and to refuse a job, and by servers when they read the record.

| what changed                              | decision                                                               |
|-------------------------------------------|------------------------------------------------------------------------|
| a table (feature) is new                  | initialised anew                                                       |
| a table (feature) is gone                 | dropped                                                                |
| a table's dimension                       | initialised anew: a row of another length has no meaning               |
| the architecture, so that rows of the     | initialised anew: column 0 has another meaning                         |
| same length gain or lose a weight         |                                                                        |
| a table's hash_size                       | refused: the ids in the record are already taken modulo the old size   |
| hash_size and dimension of a table        | initialised anew, since nothing of it would be kept                    |
| the optimiser of embeddings or of first-  | rows kept, their optimiser state anew                                  |
| order weights                             |                                                                        |
| a record in which embeddings and first-   | kept: both go on from the state that they had together                 |
| order weights share an optimiser          |                                                                        |
| the dense optimiser                       | dense parameters kept, their optimiser state anew                      |
| the architecture                          | dense parameters initialised anew                                      |
| a feature's place, the number unchanged   | dense parameters initialised anew: equal shapes would hide the swap    |
| the steps of a sparse feature             | its table initialised anew: the same id stands for something else      |
| the steps of a dense feature              | dense parameters initialised anew: the same number means another one   |
| the number of features, model options     | a dense parameter is kept where name and shape are unchanged, else anew|

With `continual.on_mismatch: refuse` everything but "kept" is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from elastrec.checkpoints.summary import (
    DenseSummary,
    ModelSummary,
    SegmentSummary,
    TableSummary,
    covering,
    steps_of,
    summarize_spec,
)
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.features import Cross, fitted_as
from elastrec.platform.specs.job import JobSpec, TrainingJob, first_order_columns


class Verdict(StrEnum):
    """What happens to one table or dense parameter."""

    KEPT = "kept"
    KEPT_WITHOUT_STATE = "kept, optimiser state anew"
    KEPT_WHERE_SHAPE_FITS = "kept where the shape fits"  # only while the new network's shapes are unknown
    NEW = "initialised anew"
    DROPPED = "dropped"
    REFUSED = "refused"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an adaptation.

    Attributes:
        what: `table` or `dense`.
        name: of the table or dense parameter; `*` for all dense parameters while their shapes are unknown.
        old, new: the two sides in words; empty if absent.
        field: path in the job file, for messages.
        remedy: what the user can do if it is refused, besides training without the record.
    """

    what: Literal["table", "dense"]
    name: str
    verdict: Verdict
    reason: str = ""
    old: str = ""
    new: str = ""
    field: str = ""
    remedy: str = ""


class Adaptation(msgspec.Struct, frozen=True):
    """What is kept, initialised anew, dropped or refused. `str()` of it is a table for people."""

    decisions: list[Decision]

    @property
    def is_exact(self) -> bool:
        """Whether the record fits without changes."""
        return all(decision.verdict is Verdict.KEPT for decision in self.decisions)

    @property
    def kept_tables(self) -> set[str]:
        """Names of the tables whose rows are kept, with or without their optimiser state."""
        kept = (Verdict.KEPT, Verdict.KEPT_WITHOUT_STATE)
        return {decision.name for decision in self.decisions if decision.what == "table" and decision.verdict in kept}

    @property
    def refused(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.verdict is Verdict.REFUSED]

    def table(self, name: str) -> Verdict:
        """The verdict on one table of the record or the job.

        Raises:
            KeyError: neither has it.
        """
        return self._verdict("table", name)

    def dense(self, name: str) -> Verdict:
        """The verdict on one dense parameter, or on all of them if shapes were unknown.

        Raises:
            KeyError: neither record nor job has it.
        """
        try:
            return self._verdict("dense", name)
        except KeyError:
            return self._verdict("dense", "*")

    def _verdict(self, what: str, name: str) -> Verdict:
        for decision in self.decisions:
            if decision.what == what and decision.name == name:
                return decision.verdict
        raise KeyError(f"no {what} {name!r} among {[d.name for d in self.decisions if d.what == what]}")

    def raise_if_refused(self, afresh: str = "set continual.start_from: nothing to begin afresh") -> None:
        """Stops a job that cannot continue from its record.

        Args:
            afresh: how to train without the record, for the message.

        Raises:
            SpecError: one problem per refused line.
        """
        if self.refused:
            raise SpecError(
                [
                    FieldProblem(
                        path=line.field,
                        value=line.new or "absent",
                        allowed=f"{line.old or 'absent'}, as in the record ({line.what} {line.name}: {line.reason})",
                        remedy=f"{line.remedy}, or {afresh}",
                    )
                    for line in self.refused
                ],
                "the job file, compared with the checkpoint record that it continues from",
            )

    def __str__(self) -> str:
        header = ("what", "name", "decision", "record", "job", "why")
        lines = [
            (line.what, line.name, line.verdict.value, line.old or "-", line.new or "-", line.reason)
            for line in self.decisions
        ]
        widths = [max(len(row[column]) for row in (header, *lines)) for column in range(len(header))]
        rows = (header, tuple("-" * width for width in widths), *lines)
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


def compare(record: ModelSummary, job: TrainingJob, dense: Sequence[DenseSummary] | None = None) -> Adaptation:
    """Compares a record's model (`record.manifest.model`) with a job, by the rules at the top of this file.

    Args:
        dense: names and shapes of the job's network; None before a worker has built it: then one line describes all
            dense parameters.
    """
    adaptation = adapt(record, job.spec, dense)
    if job.spec.continual.on_mismatch == "refuse":
        return Adaptation([_refused(line) for line in adaptation.decisions])
    return adaptation


def adapt(record: ModelSummary, spec: JobSpec, dense: Sequence[DenseSummary] | None = None) -> Adaptation:
    """As `compare`, without `continual.on_mismatch`: what servers keep of a record."""
    new = summarize_spec(spec)
    has_weight = first_order_columns(record.architecture), first_order_columns(new.architecture)
    changed = _other_steps(record, spec)
    decisions = [_table(old, new.table(old.name), *has_weight, spec, changed) for old in record.tables]
    known = {table.name for table in record.tables}
    decisions += [
        Decision(
            what="table", name=table.name, verdict=Verdict.NEW, reason="not in the record", new=_text(table),
            field="spec.data.sparse",
        )
        for table in new.tables
        if table.name not in known
    ]  # fmt: skip
    decisions += _dense(record, new, dense, changed)
    return Adaptation(decisions)


def _refused(line: Decision) -> Decision:
    if line.verdict in (Verdict.KEPT, Verdict.REFUSED):
        return line
    return msgspec.structs.replace(
        line,
        verdict=Verdict.REFUSED,
        reason=f"would be {line.verdict.value}: {line.reason}",
        remedy="set continual.on_mismatch: adapt to allow it",
    )


def _text(table: TableSummary) -> str:
    limit = f", hash_size {table.hash_size}" if table.hash_size is not None else ""
    rules = " + ".join(segment.optimizer.value for segment in table.row_segments)
    return f"dimension {table.dimension}, {rules}{limit}"


def _other_steps(record: ModelSummary, spec: JobSpec) -> list[str]:
    """Features of both sides whose steps differ; figures that must still be fitted count as equal to any figures."""
    data, before = spec.data, steps_of(record)
    known = {*record.dense_features, *record.sparse_features}
    features = {feature.name: feature for feature in data.described_features if feature.name in known}
    # An older record has the steps that its job file listed, without short forms and defaults.
    changed = {
        name
        for name, feature in features.items()
        if (fitted_as(data.all_steps(feature), before[name]) is None if name in before else data.steps(name))
    }
    # A cross combines ids after their steps.
    crosses = {name: steps[0].columns for name, steps in data.features.items() if isinstance(steps[0], Cross)}
    return [name for name in features if name in changed or changed.intersection(crosses.get(name, ()))]


def _table(
    old: TableSummary,
    new: TableSummary | None,
    old_weights: int,
    new_weights: int,
    spec: JobSpec,
    changed_steps: Sequence[str],
) -> Decision:
    if new is None:
        return Decision(
            what="table", name=old.name, verdict=Verdict.DROPPED, reason="no feature of the job uses it",
            old=_text(old), field="spec.data.sparse",
        )  # fmt: skip
    verdict, reason, field, remedy = Verdict.KEPT, "", f"spec.tables.{old.name}", ""
    if old.dimension != new.dimension:
        verdict, reason = Verdict.NEW, f"the dimension changed from {old.dimension} to {new.dimension}"
        has_its_own = spec.table(old.name).dimension is not None
        field = f"spec.tables.{old.name}.dimension" if has_its_own else "spec.model.embedding_dimension"
    elif old_weights != new_weights:
        verdict, field = Verdict.NEW, "spec.model.architecture"
        reason = f"rows {'gain' if new_weights else 'lose'} the first-order weight"
    elif other := sorted(set(changed_steps) & set(new.features) & set(old.features)):
        verdict, field = Verdict.NEW, f"spec.data.features.{other[0]}"
        reason = f"the steps of {', '.join(other)} changed: the same id stands for something else"
    elif old.hash_size != new.hash_size:
        verdict = Verdict.REFUSED
        reason = "the recorded ids are taken modulo another size, so no row's id is known"
        if old.hash_size is None:
            reason = "recorded rows of different ids would fall together"
        field = f"spec.tables.{old.name}.hash_size"
        remedy = (
            f"restore hash_size: {old.hash_size if old.hash_size is not None else 'absent'}, or give the feature "
            "another table name to start its rows anew"
        )
    elif changed := _without_state(old.row_segments, new.row_segments):
        verdict = Verdict.KEPT_WITHOUT_STATE
        reason = "; ".join(reason for _, reason in changed)
        field = changed[0][0]
    return Decision(
        what="table", name=old.name, verdict=verdict, reason=reason, old=_text(old), new=_text(new), field=field,
        remedy=remedy,
    )  # fmt: skip


def _without_state(old: Sequence[SegmentSummary], new: Sequence[SegmentSummary]) -> list[tuple[str, str]]:
    """(field, reason) of each segment whose state is initialised again; both sides have the same columns."""
    changed, column = [], 0
    for segment in new:
        if covering(old, column, segment) is None:
            first, before = 0, old[0]
            for before in old:
                first += before.width
                if column < first:
                    break
            is_weight = segment.name == "first_order"
            whose = "the first-order weights'" if is_weight else "the rows'"
            changed.append(
                (
                    f"spec.optimizers.{'first_order' if is_weight else 'rows'}.kind",
                    f"{whose} optimiser changed from {before.optimizer.value} to {segment.optimizer.value}",
                )
            )
        column += segment.width
    return changed


def _swapped(old: list[str], new: list[str]) -> bool:
    return len(old) == len(new) and old != new


def _dense(
    record: ModelSummary, new: ModelSummary, shapes: Sequence[DenseSummary] | None, changed_steps: Sequence[str]
) -> list[Decision]:
    anew, field = "", ""
    if record.architecture != new.architecture:
        anew, field = (
            f"the architecture changed from {record.architecture} to {new.architecture}",
            "spec.model.architecture",
        )
    elif _swapped(record.dense_features, new.dense_features):
        anew, field = "a dense feature was renamed or moved, equal shapes would hide it", "spec.data.dense"
    elif _swapped(record.sparse_features, new.sparse_features):
        anew, field = "a sparse feature was renamed or moved, equal shapes would hide it", "spec.data.sparse"
    elif other := [name for name in new.dense_features if name in changed_steps]:
        anew, field = f"the steps of {', '.join(other)} changed", f"spec.data.features.{other[0]}"
    same_optimizer = record.dense_optimizer == new.dense_optimizer
    kept = Verdict.KEPT if same_optimizer else Verdict.KEPT_WITHOUT_STATE
    why_kept = "" if same_optimizer else f"the optimiser changed from {record.dense_optimizer} to {new.dense_optimizer}"
    optimizer_field = "spec.optimizers.dense.kind"
    if shapes is None:
        return [_all_dense(record, new, anew, field, kept, why_kept, optimizer_field)]
    old_shapes = {dense.name: dense.shape for dense in record.dense}
    new_shapes = {dense.name: tuple(dense.shape) for dense in shapes}
    decisions = []
    for name in dict.fromkeys((*old_shapes, *new_shapes)):
        old_shape, new_shape = old_shapes.get(name), new_shapes.get(name)
        if new_shape is None:
            verdict, reason, where = Verdict.DROPPED, "the network has no such parameter", "spec.model"
        elif old_shape is None:
            verdict, reason, where = Verdict.NEW, "not in the record", "spec.model"
        elif anew:
            verdict, reason, where = Verdict.NEW, anew, field
        elif old_shape != new_shape:
            verdict, reason, where = Verdict.NEW, "the shape changed", "spec.model"
        else:
            verdict, reason, where = kept, why_kept, optimizer_field
        decisions.append(
            Decision(
                what="dense", name=name, verdict=verdict, reason=reason, field=where,
                old="" if old_shape is None else f"shape {list(old_shape)}",
                new="" if new_shape is None else f"shape {list(new_shape)}",
            )
        )  # fmt: skip
    return decisions


def _all_dense(
    record: ModelSummary, new: ModelSummary, anew: str, field: str, kept: Verdict, why_kept: str, optimizer_field: str
) -> Decision:
    verdict, reason, where = kept, why_kept, optimizer_field
    now = {table.name: table.dimension for table in new.tables}
    resized = [table.name for table in record.tables if now.get(table.name, table.dimension) != table.dimension]
    changed = [
        (name, path)
        for name, path, differs in (
            ("model options", "spec.model.options", record.options_json != new.options_json),
            ("the embedding dimension", "spec.model.embedding_dimension", bool(resized)),
            ("the number of dense features", "spec.data.dense", record.dense_features != new.dense_features),
            ("the number of sparse features", "spec.data.sparse", record.sparse_features != new.sparse_features),
        )
        if differs
    ]
    if anew:
        verdict, reason, where = Verdict.NEW, anew, field
    elif changed:
        verdict, where = Verdict.KEPT_WHERE_SHAPE_FITS, changed[0][1]
        also = f"; {why_kept}" if why_kept else ""
        reason = f"{', '.join(name for name, _ in changed)} changed{also}"
    return Decision(
        what="dense", name="*", verdict=verdict, reason=reason, field=where,
        old=f"{record.architecture}, {len(record.dense)} parameters, {record.dense_optimizer.value}",
        new=f"{new.architecture}, {new.dense_optimizer.value}",
    )  # fmt: skip
