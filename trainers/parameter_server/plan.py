"""The tables of a job and their groups, computed by servers and workers from the job file alone.

Tables whose rows have the same segments and the same admission and eviction share one *table group*: one store, one
kernel call per request. The plan numbers tables so that those of one group are neighbours; requests list their ids in
that order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrec.platform.specs.job import JobSpec, TableSpec
from elastrec.platform.specs.optimizers import OptimizerSpec, RowSegment, row_segments
from elastrec.trainers.parameter_server.hashing import table_salt


@dataclass(frozen=True)
class TableEntry:
    """One table.

    Attributes:
        index: number of the table in the plan.
        hash_size: ids are taken modulo this (result in [0, hash_size)); 0: the vocabulary grows without limit.
        segments: the segments of its rows, in order.
        initial_range: of the segments that do not start at zero.
    """

    name: str
    index: int
    segments: tuple[RowSegment, ...]
    hash_size: int
    initial_range: float
    salt: int

    @property
    def dimension(self) -> int:
        return sum(segment.width for segment in self.segments)

    @property
    def column_ranges(self) -> list[float]:
        """Per number of a row: its initial value is uniform in ± this."""
        return [
            0.0 if segment.starts_at_zero else self.initial_range
            for segment in self.segments
            for _ in range(segment.width)
        ]


@dataclass(frozen=True)
class TableGroup:
    """Tables with one row format: numbers `first_table` up to (not with) `end_table` of the plan."""

    index: int
    first_table: int
    end_table: int
    segments: tuple[RowSegment, ...]
    admit_after: int
    evict_after_seconds: float  # 0: never

    @functools.cached_property
    def dimension(self) -> int:
        return sum(segment.width for segment in self.segments)


@dataclass(frozen=True)
class TablePlan:
    """All tables in request order, and their groups."""

    tables: tuple[TableEntry, ...]
    groups: tuple[TableGroup, ...]
    virtual_buckets: int
    seed: int
    by_name: Mapping[str, TableEntry] = field(repr=False, compare=False, default_factory=dict)

    @functools.cached_property
    def counts_sightings(self) -> bool:
        """Pushes must carry how often each id occurred."""
        return any(group.admit_after > 1 for group in self.groups)


def make_plan(
    dimensions: Mapping[str, int],
    *,
    settings: Mapping[str, TableSpec] | None = None,
    initial_range: float = 0.01,
    rows: OptimizerSpec | None = None,
    first_order: OptimizerSpec | None = None,
    virtual_buckets: int = 256,
    seed: int = 0,
) -> TablePlan:
    """A plan of the tables named in `dimensions` (name → numbers per row).

    Args:
        settings: what is not default, by table.
        initial_range: of the tables whose settings name none.
        rows: the rule of the embeddings of those tables; default: the job file's.
        first_order: the rule of the first number of every row, which starts at zero; None: rows have no such number.
    """
    settings = settings or {}
    bundles: dict[tuple[tuple[RowSegment, ...], int, float], list[str]] = {}
    for name, dimension in dimensions.items():
        spec = settings.get(name, TableSpec())
        segments = row_segments(dimension, spec.optimizer or rows or OptimizerSpec(), first_order)
        bundles.setdefault((segments, spec.admit_after, spec.evict_after or 0.0), []).append(name)
    tables: list[TableEntry] = []
    groups: list[TableGroup] = []
    for (segments, admit_after, evict_after_seconds), names in bundles.items():
        first = len(tables)
        for name in names:
            spec = settings.get(name, TableSpec())
            tables.append(
                TableEntry(
                    name=name,
                    index=len(tables),
                    segments=segments,
                    hash_size=spec.hash_size or 0,
                    initial_range=spec.initial_range or initial_range,
                    salt=table_salt(name),
                )
            )
        groups.append(TableGroup(len(groups), first, len(tables), segments, admit_after, evict_after_seconds))
    return TablePlan(tuple(tables), tuple(groups), virtual_buckets, seed, {table.name: table for table in tables})


def plan_of_job(spec: JobSpec) -> TablePlan:
    """The plan of a job file."""
    return make_plan(
        {name: spec.row_dimension(name) for name in spec.data.tables},
        settings=spec.tables,
        initial_range=spec.model.row_range,
        rows=spec.optimizers.rows,
        first_order=spec.first_order_rule,
        virtual_buckets=spec.resources.virtual_buckets,
        seed=spec.training.seed,
    )
