"""A parameter server whose checkpoint store hangs: `python -m tests.trainers.parameter_server.hanging_store GATE`.

While the file GATE exists, writes to a store do not return.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from elastrec.checkpoints.stores import local_store
from elastrec.trainers.parameter_server.__main__ import main


def hang_while_there(gate: Path) -> None:
    write = local_store._LocalWriter.write

    def gated(self: Any, data: Any) -> None:
        while gate.exists():
            time.sleep(0.01)
        write(self, data)

    local_store._LocalWriter.write = gated  # type: ignore[method-assign]


if __name__ == "__main__":
    hang_while_there(Path(sys.argv[1]))
    sys.exit(main())
