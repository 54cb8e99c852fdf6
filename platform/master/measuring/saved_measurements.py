"""What a master knows of its job's speed and cost, kept beside its journal: a restarted one goes on from it.

Not part of the journal: no decision of the state machine hangs on it, and the last seconds of it may be lost. As large
as what is known, one entry per configuration and per kept point, however long the job runs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog
import xxhash

from elastrec.platform.master.measuring.observations import Remembered

log = structlog.get_logger(__name__)
MEASUREMENTS_FILE = "observations.json"
EVERY_SECONDS = 10.0
_FORMAT = 3


class _Page(msgspec.Struct, kw_only=True):
    """The file: `body` is what is remembered, as JSON."""

    format: int
    checksum: int
    body: msgspec.Raw


class SavedMeasurements:
    """One file in a master's folder. Whatever goes wrong with it costs the job its measurements, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / MEASUREMENTS_FILE
        self._written, self._last, self._fails = float("-inf"), b"", False

    def recall(self) -> Remembered:
        """What the master before a restart knew; empty where the file is not there or damaged."""
        try:
            page = msgspec.json.decode(self._file.read_bytes(), type=_Page)
            body = bytes(page.body)
            if page.format != _FORMAT or page.checksum != _checksum(body):
                raise ValueError(f"format {page.format} or checksum is wrong")
            remembered = msgspec.json.decode(body, type=Remembered)
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError) as error:
            log.warning(
                "observations_not_read", file=str(self._file), reason=str(error),
                advice="speeds are measured anew; of the cost, that of pods which are gone is missing",
            )  # fmt: skip
            return Remembered()
        log.info("observations_read", configurations=len(remembered.measured), points=len(remembered.growth))
        return remembered

    def keep(self, remembered: Remembered, now: float) -> None:
        """Writes it, in one piece or not at all."""
        self._written = now
        body = msgspec.json.encode(remembered)
        if body == self._last:
            return
        page = _Page(format=_FORMAT, checksum=_checksum(body), body=msgspec.Raw(body))
        beside = self._file.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode(page))
            beside.replace(self._file)
        except OSError as error:
            # A full disk has better uses for half a file.
            beside.unlink(missing_ok=True)
            if not self._fails:
                log.warning("observations_not_kept", file=str(self._file), reason=str(error))
            self._fails = True
            return
        self._last, self._fails = body, False

    def is_due(self, now: float) -> bool:
        """Whether the last time was long enough ago."""
        return now >= self._written + EVERY_SECONDS


def _checksum(body: bytes) -> int:
    # JSON readers elsewhere know integers of 53 bits.
    return xxhash.xxh3_64_intdigest(body) >> 11
