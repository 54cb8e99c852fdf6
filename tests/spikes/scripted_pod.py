"""A worker or server that follows orders and computes nothing: the program of pods in the spikes.

It is slow until the file `fast` exists beside the job's store. When `hog-NAME` exists, it exceeds its memory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from elastrec.platform.clusters.pods import EndReason, PodSpec
from elastrec.platform.specs import environment
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize
from tests.platform.master.fakes import ScriptedPod

_SLOW_SECONDS = 0.25
_HOG_BYTES = 700 * 2**20


class _Itself:
    """The cluster, as far as a script asks it: here the end of a pod is the end of its process."""

    def __init__(self, name: str) -> None:
        self.pods = {name: None}
        self.exit_code = 1

    def end(self, name: str, reason: EndReason, exit_code: int) -> None:
        self.exit_code = exit_code


def play() -> int:
    """Returns the exit code."""
    name, folder = os.environ[environment.POD], Path(os.environ[environment.FILES])
    texts = {file: (folder / file).read_text() for file in (environment.TOKEN_FILE, environment.STORE_FILE)}
    store = Path(texts[environment.STORE_FILE].removeprefix("file://"))
    spec = PodSpec(
        name=name,
        job=os.environ[environment.JOB],
        role=Role.WORKER if "-worker-" in name else Role.PARAMETER_SERVER,
        command=(),
        size=PodSize(1.0, 1),
        environment=dict(os.environ),
        secrets=texts,
    )

    def before_step(pod: ScriptedPod, shard: Any) -> None:
        if (store.parent / f"hog-{name}").exists():
            hoard = bytearray(_HOG_BYTES)
            hoard[:: 2**12] = b"x" * len(hoard[:: 2**12])
            time.sleep(60.0)
        if not (store.parent / "fast").exists():
            time.sleep(_SLOW_SECONDS)

    itself = _Itself(name)
    pod: Any = ScriptedPod(spec, itself, [], 0.002, before_step)  # type: ignore[arg-type]
    pod.thread.join()
    return itself.exit_code


if __name__ == "__main__":
    code = play()
    sys.stdout.flush()
    os._exit(code)
