"""Executes slow effects apart from the handling of events: records in their lane, and names of files."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.history.points import Costs
from elastrec.platform.master.machine.effects import CommitRecord, DiscardRecord
from elastrec.platform.master.machine.events import Submit
from elastrec.platform.master.machine.recovery import Recovery
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.service.record_lane import RecordLane
from elastrec.platform.master.service.term_watch import TermWatch
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.splits import Split

log = structlog.get_logger(__name__)


class Executor:
    """The executor of one job.

    Args:
        submit: takes the event with the outcome of an effect.
        in_progress, term, costs: see RecordLane.
    """

    def __init__(
        self,
        request: LaunchRequest,
        submit: Submit,
        in_progress: Callable[[], list[str]],
        term: TermWatch,
        costs: Callable[[], Costs | None],
    ) -> None:
        self._request = request
        self._records = RecordLane(request, submit, in_progress, term, costs)
        self._stopping = threading.Event()
        self.failure_notes = ""

    def close(self) -> None:
        self._stopping.set()
        self._records.close()

    def submit(self, effect: CommitRecord | DiscardRecord) -> None:
        """Executes an effect soon."""
        if not self._stopping.is_set():
            self._records.submit(effect)

    def prune(self, recovery: Recovery) -> None:
        """See RecordLane."""
        self._records.prune(recovery)

    def name_files(self, split: Split) -> None:
        """Adds the files with a split's rows to `failure_notes`, soon."""
        threading.Thread(target=self._name_files, args=(split,), name="files", daemon=True).start()

    def _name_files(self, split: Split) -> None:
        uri = self._request.streams[split.stream].manifest
        try:
            places = read_manifest(uri).locate_rows(split.range.start, split.range.length)
        except ElastrecError as error:
            log.warning("files_of_poison_not_found", manifest=uri, reason=str(error))
            return
        lines = [f"  {file.uri} rows {first} to {first + rows - 1}" for file, first, rows in places]
        self.failure_notes = "The shard's rows lie in\n" + "\n".join(lines)
