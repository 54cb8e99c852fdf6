"""Which tables exist and how they are bundled: computed alike by servers and workers from the job file alone.

Tables whose rows have the same dimension and the same admission and eviction share one *table group*: one store, one
kernel call per request. The plan numbers tables so that those of one group are neighbours; requests list their ids in
that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrec.platform.specs.job import JobSpec, TableSpec
from elastrec.trainers.parameter_server.hashing import table_salt


@dataclass(frozen=True)
class TableEntry:
    """One table.

    Attributes:
        index: number of the table in the plan.
        hash_size: ids are taken modulo this (result in [0, hash_size)); 0: the vocabulary grows without limit.
        initial_range: rows start uniform in ±initial_range, except for the zero columns.
        zero_columns: so many leading numbers of a row start at zero (first-order weights).
    """

    name: str
    index: int
    dimension: int
    hash_size: int
    initial_range: float
    zero_columns: int
    salt: int


@dataclass(frozen=True)
class TableGroup:
    """Tables with one row format: numbers `first_table` up to (not with) `end_table` of the plan."""

    index: int
    first_table: int
    end_table: int
    dimension: int
    admit_after: int
    evict_after_seconds: float  # 0: never


@dataclass(frozen=True)
class TablePlan:
    """All tables in request order, and their groups."""

    tables: tuple[TableEntry, ...]
    groups: tuple[TableGroup, ...]
    virtual_buckets: int
    seed: int
    by_name: Mapping[str, TableEntry] = field(repr=False, compare=False, default_factory=dict)

    @property
    def counts_sightings(self) -> bool:
        """Pushes must carry how often each id occurred."""
        return any(group.admit_after > 1 for group in self.groups)


def make_plan(
    dimensions: Mapping[str, int],
    *,
    settings: Mapping[str, TableSpec] | None = None,
    initial_range: float = 0.01,
    zero_columns: int = 0,
    virtual_buckets: int = 256,
    seed: int = 0,
) -> TablePlan:
    """A plan of the tables named in `dimensions` (name → numbers per row).

    Args:
        settings: what is not default, by table.
        initial_range: of the tables whose settings name none.
        zero_columns: leading numbers of the rows of every table that start at zero.
    """
    settings = settings or {}
    bundles: dict[tuple[int, int, float], list[str]] = {}
    for name, dimension in dimensions.items():
        spec = settings.get(name, TableSpec())
        bundles.setdefault((dimension, spec.admit_after, spec.evict_after or 0.0), []).append(name)
    tables: list[TableEntry] = []
    groups: list[TableGroup] = []
    for (dimension, admit_after, evict_after_seconds), names in bundles.items():
        first = len(tables)
        for name in names:
            spec = settings.get(name, TableSpec())
            tables.append(
                TableEntry(
                    name=name,
                    index=len(tables),
                    dimension=dimension,
                    hash_size=spec.hash_size or 0,
                    initial_range=spec.initial_range or initial_range,
                    zero_columns=zero_columns,
                    salt=table_salt(name),
                )
            )
        groups.append(TableGroup(len(groups), first, len(tables), dimension, admit_after, evict_after_seconds))
    return TablePlan(tuple(tables), tuple(groups), virtual_buckets, seed, {table.name: table for table in tables})


def plan_of_job(spec: JobSpec) -> TablePlan:
    """The plan of a job file."""
    return make_plan(
        dict.fromkeys(spec.data.tables, spec.model.row_dimension),
        settings=spec.tables,
        initial_range=spec.model.row_range,
        zero_columns=spec.model.first_order_columns,
        virtual_buckets=spec.resources.virtual_buckets,
        seed=spec.training.seed,
    )
