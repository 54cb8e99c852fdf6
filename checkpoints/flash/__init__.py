"""Flash checkpoint (DLRover-RM §5.2): parts of records are written to memory first, and copied to the store from there.

This room contains the memory for parts, and reading parts back. The cluster provides the memory and sets its size, and
servers decide when parts are copied to the store. This room does not know rows, servers or masters.
"""

from elastrec.checkpoints.flash.memory import MOST_NOTE_BYTES, HeldPart, MemoryUnusableError, PartMemory
from elastrec.checkpoints.flash.store import MemoryStore

__all__ = ["MOST_NOTE_BYTES", "HeldPart", "MemoryStore", "MemoryUnusableError", "PartMemory"]
