"""LogCalendar: the days and hours of a click log's own time zone.

A row belongs to the day or hour that a clock in that zone shows at its timestamp. Days have 23 or 25 hours where clocks
change; the hour that clocks repeat is one partition with the rows of both, the hour that they skip is none. A partition
begins at the first moment that belongs to it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import chain, pairwise
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.partitions import Partition
from elastrec.platform.specs.data import Partitioning
from elastrec.platform.specs.errors import DataError

_DAY_SECONDS = 86_400
_EPOCH = date(1970, 1, 1)
# A day away from the ends of Python's calendar, beyond which no offset can be asked for.
_FIRST_DAY, _LAST_DAY = ((day - _EPOCH).days for day in (date(1, 1, 2), date(9999, 12, 30)))
FIRST_SECOND, LAST_SECOND = _FIRST_DAY * _DAY_SECONDS, (_LAST_DAY + 1) * _DAY_SECONDS - 1
"""The timestamps that belong to a day of the calendar."""
_FARTHEST_OFFSET = 26 * 3600


class LogCalendar:
    """Partitions of one time zone. Their keys number them: local days, or local hours, since 1970-01-01.

    Args:
        timezone: IANA name.
        unit: `day` or `hour`.
    """

    def __init__(self, timezone: str, unit: Partitioning = Partitioning.DAY) -> None:
        assert unit is not Partitioning.NONE
        self.zone = ZoneInfo(timezone)
        self._unit = unit
        self._width = _DAY_SECONDS if unit is Partitioning.DAY else 3600

    def keys_of(self, second_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each moment, seconds since the epoch; both int64 [B]."""
        return np.asarray((second_B + self._offsets_at(second_B)) // self._width)

    def seconds_of_clock(self, local_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The moments at which a clock in the zone shows these times, as if they were seconds since the epoch; [B].

        Of a time that clocks show twice one of the two, of one that they skip a moment close to it.
        """
        guess_B = local_B - self._offsets_at(local_B)
        return np.asarray(local_B - self._offsets_at(guess_B))

    def _offsets_at(self, second_B: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(second_B):
            return second_B
        days = np.unique(second_B // _DAY_SECONDS)
        begins, offsets = np.array([*chain.from_iterable(_offsets(self.zone, day) for day in days.tolist())]).T
        return np.asarray(offsets[np.searchsorted(begins, second_B, side="right") - 1])

    def partition(self, key: int) -> Partition:
        """The partition of a key."""
        days, hour = divmod(key * self._width, _DAY_SECONDS)
        return Partition(_EPOCH + timedelta(days=days), -1 if self._unit is Partitioning.DAY else hour // 3600)

    def begin(self, partition: Partition) -> datetime:
        """The first moment of a partition, in the log's zone; where clocks skip it, of the one after it."""
        return self._moment(self._begin(self._key(partition)))

    def end(self, partition: Partition) -> datetime:
        """The first moment of the partition after this one."""
        return self._moment(self._begin(self._key(partition) + 1))

    def between(self, start: datetime, end: datetime) -> list[Partition]:
        """Every partition that begins in [start, end), whether it exists or not (a manifest refuses missing ones).

        Args:
            start, end: without a time zone: moments of the log's own.

        Raises:
            DataError: there is none.
        """
        first, last = (self._seconds(moment) for moment in (start, end))
        lowest, highest = (int(self.keys_of(np.array([second]))[0]) for second in (first, last))
        partitions = []
        for key in range(lowest, highest + 2):
            begin = self._begin(key)
            if first <= begin < last and self.keys_of(np.array([begin]))[0] == key:
                partitions.append(self.partition(key))
        if not partitions:
            raise DataError(
                f"no {self._unit} begins in the interval from {start} up to {end} in the time zone {self.zone}; "
                "allowed: an interval that holds the beginning of at least one partition"
            )
        return partitions

    def _key(self, partition: Partition) -> int:
        seconds = (partition.day - _EPOCH).days * _DAY_SECONDS + max(partition.hour, 0) * 3600
        return seconds // self._width

    def _begin(self, key: int) -> int:
        """The first second whose key is this or a later one."""
        wall = key * self._width
        days = range((wall - _FARTHEST_OFFSET) // _DAY_SECONDS, (wall + _FARTHEST_OFFSET) // _DAY_SECONDS + 1)
        stretches = [*chain.from_iterable(_offsets(self.zone, day) for day in days)]
        for (begin, offset), (end, _) in pairwise(stretches):
            if (second := max(begin, wall - offset)) < end:
                return second
        return wall - stretches[-1][1]

    def _seconds(self, moment: datetime) -> int:
        aware = moment.replace(tzinfo=self.zone) if moment.tzinfo is None else moment
        # Rounded up: a partition that begins within this second begins at or before it.
        return -int((datetime(1970, 1, 1, tzinfo=UTC) - aware) // timedelta(seconds=1))

    def _moment(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self.zone)


@lru_cache(maxsize=65_536)
def _offsets(zone: ZoneInfo, day: int) -> tuple[tuple[int, int], ...]:
    """(second, offset in seconds that holds from it on) of a UTC day, its first second and perhaps one more."""
    first, last = day * _DAY_SECONDS, (day + 1) * _DAY_SECONDS
    before, after = _offset(zone, first), _offset(zone, last)
    if before == after:
        return ((first, before),)
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return ((first, before), (high, after)) if high < last else ((first, before),)


def _offset(zone: ZoneInfo, second: int) -> int:
    clipped = min(max(second, FIRST_SECOND), LAST_SECOND)
    offset = datetime.fromtimestamp(clipped, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())
