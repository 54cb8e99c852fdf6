"""`python -m elastrec.trainers.memory_owner BYTES ARGUMENT...`: the interpreter with these arguments, and memory.

Ends with the exit code of the process that it starts; 2: the memory is not available.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from elastrec.trainers.memory_owner.control_group import ControlGroup
from elastrec.trainers.memory_owner.memory import MemoryRefusedError, make_memory
from elastrec.trainers.memory_owner.restarting import RestartedProcess

if TYPE_CHECKING:
    from types import FrameType

MEMORY, READY = "ELASTREC_MEMORY", "ELASTREC_READY"
"""As in `specs.environment`, whose package takes 60 MB."""
BAD_INPUT_EXIT_CODE = 2


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.stderr.write(f"{sys.argv[1:]} is not allowed; allowed: the memory in bytes, then arguments of Python\n")
        return BAD_INPUT_EXIT_CODE
    # Making the memory takes seconds, and the first process of a container does not get signals without a handler.
    signal.signal(signal.SIGTERM, _end)
    group = ControlGroup()
    try:
        memory = make_memory(int(sys.argv[1]), group.limit_bytes())
    except MemoryRefusedError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT_EXIT_CODE
    environment = {**os.environ, MEMORY: memory}
    # The pod has started once.
    process = RestartedProcess(sys.argv[2:], environment, once=[READY], memory_kills=group.memory_kills)
    return process.run()


if __name__ == "__main__":
    sys.exit(main())
