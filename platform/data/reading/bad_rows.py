"""BadRowLedger: counts unusable rows, logs those that are skipped, and enforces the limit of the job file."""

from __future__ import annotations

import numpy as np
import structlog

from elastrec.platform.data.reading.encode import EncodedRows
from elastrec.platform.data.reading.raw import RawRows
from elastrec.platform.specs.data import BadRows
from elastrec.platform.specs.errors import DataError

_log = structlog.get_logger()


class BadRowLedger:
    """Counts bad rows, each once, also if it is read several times; raises if the job file does not allow them."""

    def __init__(self, policy: BadRows) -> None:
        self._policy = policy
        self._seen: set[tuple[str, int]] = set()

    @property
    def rows(self) -> int:
        return len(self._seen)

    def judge(self, piece: RawRows, encoded: EncodedRows) -> None:
        """Counts the bad rows of one piece of a file.

        Args:
            encoded: the rows of `piece`.

        Raises:
            DataError: there is a bad row and the policy is `fail`, or one more than `at_most`.
        """
        bad = piece.first_bad(encoded)
        if bad is None:
            return
        uri, first = piece.file.uri, piece.first_row
        text = f"{uri}: row {first + bad.row}, {bad.reason}"
        if self._policy.policy == "fail":
            raise DataError(f"{text}; fix the file, or allow such rows with data.bad_rows.policy: skip")
        before = len(self._seen)
        self._seen.update((uri, first + row) for row in np.flatnonzero(encoded.bad_B).tolist())
        if len(self._seen) > self._policy.at_most:
            raise DataError(
                f"{len(self._seen)} bad rows, data.bad_rows.at_most allows {self._policy.at_most}; one of them: {text}"
            )
        if len(self._seen) > before:
            _log.warning("bad rows skipped", rows=len(self._seen) - before, so_far=len(self._seen), first=text)
