"""Flash checkpoint (DLRover-RM §5.2): parts of records lie in memory first, and go to the store from there.

Here belong the memory in which parts lie, and reading them back. Who owns the memory and how large it is, is a
cluster's to say; when parts are copied to the store is a server's. Nothing here knows of rows, servers or masters.
"""

from elastrec.checkpoints.flash.memory import MOST_NOTE_BYTES, HeldPart, MemoryUnusableError, PartMemory
from elastrec.checkpoints.flash.store import MemoryStore

__all__ = ["MOST_NOTE_BYTES", "HeldPart", "MemoryStore", "MemoryUnusableError", "PartMemory"]
