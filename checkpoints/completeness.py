"""Checks that parts form a record: every bucket of every table and every dense element exactly once, all of one save.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from elastrec.checkpoints.parts import DenseSlice, PartManifest
from elastrec.checkpoints.summary import DenseSummary
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.some import repeated


def check_parts(
    parts: Sequence[PartManifest],
    *,
    tables: Sequence[str],
    virtual_buckets: int,
    generation: int,
    cut: str | None,
    where: str,
) -> list[DenseSummary]:
    """Checks that the parts together are one model of one save, with nothing missing and nothing duplicated.

    Args:
        tables: of the job.
        cut: the save to which the parts must belong; None: any save, but the same for all.

    Returns:
        the layout of the dense parameters.

    Raises:
        CheckpointError: names the first contradiction, with bucket or range and part.
    """
    names = [part.name for part in parts]
    if not parts:
        raise CheckpointError(f"{where}: a record needs at least one part")
    if doubled := repeated(names):
        raise CheckpointError(f"{where}: the parts {doubled} came more than once")
    if others := {part.name: part.generation for part in parts if part.generation != generation}:
        raise CheckpointError(f"{where}: the record is of generation {generation}, but the parts are of {others}")
    expected = parts[0].cut if cut is None else cut
    if cuts := {part.name: part.cut for part in parts if part.cut != expected}:
        raise CheckpointError(f"{where}: the record is of the save {expected!r}, but the parts are of {cuts}")
    for group in _groups(parts, tables, where):
        _check_buckets(parts, group, virtual_buckets, where)
    slices: dict[str, list[tuple[DenseSlice, str]]] = {}
    for part in parts:
        for dense in part.dense:
            slices.setdefault(dense.name, []).append((dense, part.name))
    layout = [_whole(name, parts_of_parameter, where) for name, parts_of_parameter in slices.items()]
    _check_dense_ranges(parts, sum(math.prod(dense.shape) for dense in layout), where)
    begin = {name: place for part in parts for name, place in _places(part)}
    return sorted(layout, key=lambda dense: begin[dense.name])


def _groups(parts: Sequence[PartManifest], tables: Sequence[str], where: str) -> list[list[str]]:
    """The table groups of all parts, which must be the same and have each table of the job once."""
    first, *others = parts
    groups = [group.tables for group in first.groups]
    for part in others:
        if [group.tables for group in part.groups] != groups:
            raise CheckpointError(
                f"{where}: part {part.name} has the tables {[group.tables for group in part.groups]}, part "
                f"{first.name} has {groups}"
            )
    held = [table for group in groups for table in group]
    if doubled := repeated(held):
        raise CheckpointError(f"{where}: part {first.name} has the tables {doubled} more than once")
    if missing := [table for table in tables if table not in held]:
        raise CheckpointError(f"{where}: no part answers for the tables {missing}; parts: {names_of(parts)}")
    return groups


def names_of(parts: Sequence[PartManifest]) -> list[str]:
    return [part.name for part in parts]


def _check_buckets(parts: Sequence[PartManifest], tables: list[str], virtual_buckets: int, where: str) -> None:
    """Checks that each bucket of a group is covered by exactly one part, once."""
    named = f"the tables {', '.join(tables)}"
    owners = np.full(virtual_buckets, -1, np.int64)
    for number, part in enumerate(parts):
        (group,) = (group for group in part.groups if group.tables == tables)
        for run in group.answers:
            if run.count < 1 or run.first < 0 or run.step < 1 or run.last >= virtual_buckets:
                raise CheckpointError(
                    f"{where}: part {part.name} answers for the buckets {run.first} to {run.last} of {named}; allowed: "
                    f"0 to {virtual_buckets - 1}"
                )
            if run.from_version > run.to_version:
                raise CheckpointError(
                    f"{where}: part {part.name} answers for bucket {run.first} of {named} from version "
                    f"{run.from_version} to {run.to_version}; allowed: to a later one"
                )
            answered = slice(run.first, run.last + 1, run.step)
            if (owners[answered] >= 0).any():
                bucket = run.first + run.step * int(np.argmax(owners[answered] >= 0))
                other = parts[int(owners[bucket])].name
                raise CheckpointError(f"{where}: bucket {bucket} of {named} is in part {other} and in part {part.name}")
            owners[answered] = number
    missing = np.flatnonzero(owners < 0)
    if len(missing):
        raise CheckpointError(
            f"{where}: no part answers for {len(missing)} of {virtual_buckets} buckets of {named}, first: "
            f"{missing[0]}; parts: {names_of(parts)}"
        )


def is_delta(parts: Sequence[PartManifest]) -> bool:
    """Whether a part contains only changes of a bucket."""
    return any(run.from_version > 0 for part in parts for group in part.groups for run in group.answers)


def check_base(
    parts: Sequence[PartManifest], base: Sequence[PartManifest], virtual_buckets: int, where: str, base_uri: str
) -> None:
    """Checks that the changes in the parts begin where the base record ends.

    Raises:
        CheckpointError: names the first bucket where it does not.
    """
    last: dict[tuple[str, ...], np.ndarray[Any, np.dtype[np.int64]]] = {}
    for part in base:
        for group in part.groups:
            versions = group.versions()
            of_group = last.setdefault(tuple(group.tables), np.full(virtual_buckets, -1, np.int64))
            of_group[versions.buckets] = versions.last
    nothing = np.full(virtual_buckets, -1, np.int64)
    for part in parts:
        for group in part.groups:
            versions = group.versions()
            before = last.get(tuple(group.tables), nothing)[versions.buckets]
            wrong = np.flatnonzero((versions.first > 0) & (versions.first != before + 1))
            if len(wrong):
                bucket = int(wrong[0])
                raise CheckpointError(
                    f"{where}: part {part.name} has changes of bucket {versions.buckets[bucket]} of the tables "
                    f"{', '.join(group.tables)} from version {versions.first[bucket]}, but {base_uri or 'no record'}, "
                    f"on which it builds, ends with version {before[bucket]}"
                )


def _check_dense_ranges(parts: Sequence[PartManifest], elements: int, where: str) -> None:
    """Checks that each element of the dense parameters is covered by exactly one part."""
    ranges = [(run, part.name) for part in parts for run in part.dense_runs()]
    position = 0
    for (start, end), name in sorted(ranges):
        if start != position or end < start:
            raise CheckpointError(
                f"{where}: part {name} answers for the dense elements {start} to {end}, but the parts before it end "
                f"at {position}"
            )
        position = end
    if position != elements:
        raise CheckpointError(
            f"{where}: the parts answer for {position} of {elements} elements of the dense parameters"
        )


def _places(part: PartManifest) -> Iterator[tuple[str, int]]:
    """The first elements of the parameters of which a part has slices, counted over all dense parameters of the job."""
    runs = iter(part.dense_runs())
    place, end = 0, 0
    for dense in part.dense:
        if place == end:
            place, end = next(runs, (place, end))
        yield dense.name, place - dense.start
        place += dense.length


def _whole(name: str, slices: list[tuple[DenseSlice, str]], where: str) -> DenseSummary:
    shapes = {dense.shape for dense, _ in slices}
    if len(shapes) > 1:
        raise CheckpointError(f"{where}: dense parameter {name} has the shapes {sorted(shapes)} in different parts")
    shape = shapes.pop()
    position, last = 0, "nobody"
    # Empty slices do not count for coverage.
    for dense, part in sorted(((d, p) for d, p in slices if d.length), key=lambda item: item[0].start):
        if dense.start != position:
            problem = "missing" if dense.start > position else "written twice"
            raise CheckpointError(
                f"{where}: of dense parameter {name} the elements between {min(position, dense.start)} and "
                f"{max(position, dense.start)} are {problem} (parts {last}, {part})"
            )
        position, last = dense.start + dense.length, part
    if position != math.prod(shape):
        raise CheckpointError(
            f"{where}: dense parameter {name} of shape {shape} has only {position} of {math.prod(shape)} elements"
        )
    return DenseSummary(name=name, shape=shape)
