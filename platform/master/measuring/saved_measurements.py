"""A master's measurements of its job's speed and cost, stored next to its journal for the next master process.

They are not part of the journal, because no decision of the state machine depends on them, and the last seconds may be
lost. The size depends on configurations and kept points, not on the duration of the job.
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
    """The file: `body` contains the measurements as JSON."""

    format: int
    checksum: int
    body: msgspec.Raw


class SavedMeasurements:
    """One file in a master's folder. If it is lost or damaged, the job only loses its measurements."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / MEASUREMENTS_FILE
        self._written, self._last, self._fails = float("-inf"), b"", False

    def recall(self) -> Remembered:
        """The measurements of the master before a restart; empty if the file is missing or damaged."""
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
        """Writes the file atomically."""
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
            # Removed, to free space on a full disk.
            beside.unlink(missing_ok=True)
            if not self._fails:
                log.warning("observations_not_kept", file=str(self._file), reason=str(error))
            self._fails = True
            return
        self._last, self._fails = body, False

    def is_due(self, now: float) -> bool:
        """Whether the last write was long enough ago."""
        return now >= self._written + EVERY_SECONDS


def _checksum(body: bytes) -> int:
    # Other JSON readers support only integers of 53 bits.
    return xxhash.xxh3_64_intdigest(body) >> 11
