"""The story that earlier masters of a resumed job have left in its checkpoint store.

A master that ends by itself leaves its explanation; of one that was killed, there is none.
"""

from __future__ import annotations

import threading

from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.explanation import read_explanation
from elastrec.platform.master.reporting.unsent_metrics import read_result
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.transport.messages.ledger import Explanation

PATIENCE_SECONDS = 3.0
"""How long an explanation of a running job waits for the store, which may be why somebody asks for it."""


class EarlierStory:
    """Reads the story once; thread-safe.

    Args:
        request: of the master that continues the job.
    """

    def __init__(self, request: LaunchRequest) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_read = False
        self._story: Explanation | None = None
        self._problem = ""

    def read(self) -> Explanation | None:
        """The story; None if no earlier master of this run of the job has left one.

        Raises:
            CheckpointError: the store could not be asked, or the story is damaged.
        """
        request = self._request
        if not self._is_read:
            story = None
            # Otherwise, the story in the store is that of a finished run of the same job.
            job_name = request.training_job.metadata.name
            if read_result(request.store, job_name, request.job_id, request.earlier_terms) is not None:
                story = read_explanation(request.store, request.job_id)
            self._story, self._is_read = story, True
        return self._story

    def look(self, patience_seconds: float = PATIENCE_SECONDS) -> tuple[Explanation | None, str]:
        """Like `read`, but waits no longer than this; also returns why the story cannot be read, else an empty text."""
        with self._lock:
            if self._thread is None or not (self._is_read or self._thread.is_alive()):
                self._problem = ""
                self._thread = threading.Thread(target=self._try_to_read, name="earlier-story", daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(patience_seconds)
        if self._is_read:
            return self._story, ""
        return None, self._problem or "the checkpoint store does not answer"

    def _try_to_read(self) -> None:
        try:
            self.read()
        except CheckpointError as error:
            self._problem = str(error)
