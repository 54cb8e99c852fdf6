"""The virtual buckets of table groups that a part of a record covers, each from one version to another.

A bucket's version counts its saves and marks (`trainers/parameter_server/storage`). If a part covers a bucket and has
no row of it, the bucket is empty; a bucket that no part covers was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]


class BucketRun(msgspec.Struct, frozen=True, array_like=True):
    """Buckets `first`, `first + step`, ... (`count` of them) with the same versions.

    Buckets are assigned to owners in turn and saved together, so a part has few runs for any number of buckets.

    Attributes:
        from_version: lowest version of the changes that the part holds; 0: all that the buckets hold.
        to_version: highest one.
    """

    first: int
    step: int
    count: int
    from_version: int = 0
    to_version: int = 0

    @property
    def last(self) -> int:
        return self.first + self.step * (self.count - 1)


class GroupPart(msgspec.Struct, frozen=True, kw_only=True):
    """The buckets of one table group that a part covers; a group is a list of tables whose rows are stored together."""

    tables: list[str]
    answers: list[BucketRun]

    def buckets(self) -> Array:
        """[b] int64, in the order of the runs."""
        return self.versions().buckets

    def versions(self) -> Versions:
        """The runs, bucket by bucket."""
        if not self.answers:
            return Versions(*(np.empty(0, np.int64) for _ in range(3)))
        runs = self.answers
        counts = [run.count for run in runs]
        return Versions(
            np.concatenate([run.first + run.step * np.arange(run.count, dtype=np.int64) for run in runs]),
            np.repeat(np.array([run.from_version for run in runs], np.int64), counts),
            np.repeat(np.array([run.to_version for run in runs], np.int64), counts),
        )


@dataclass(frozen=True)
class Versions:
    """Buckets with their versions in a part, [b] int64 each; see BucketRun."""

    buckets: Array
    first: Array
    last: Array


def answer(
    tables: Sequence[str],
    buckets: Sequence[int] | range | Array,
    *,
    first: Array | int = 0,
    last: Array | int = 0,
) -> GroupPart:
    """The covered buckets of a group.

    Args:
        buckets: [b], distinct.
        first, last: [b] versions, or a number for all; see BucketRun.
    """
    numbers = np.asarray(buckets, np.int64)
    order = np.argsort(numbers)
    columns = [
        values[order].tolist() for values in (numbers, *(np.broadcast_to(v, numbers.shape) for v in (first, last)))
    ]
    runs: list[list[int]] = []
    for bucket, since, until in zip(*columns, strict=True):
        run = runs[-1] if runs else None
        if run is not None and run[3:] == [since, until]:
            if run[2] == 1:
                run[1:3] = [bucket - run[0], 2]
                continue
            if bucket == run[0] + run[1] * run[2]:
                run[2] += 1
                continue
        runs.append([bucket, 1, 1, since, until])
    return GroupPart(tables=list(tables), answers=[BucketRun(*run) for run in runs])
