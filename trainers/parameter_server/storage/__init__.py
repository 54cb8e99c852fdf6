"""The rows of a parameter server: a `RowStore` per table group, in buckets that can be listed, moved and dropped.

This room contains the cells, slabs, index and versions of rows, and the kernels that read and change them. Workers,
records and the network do not belong here. `docs/proposals/parameter_server.md` explains memory, locks and versions.
"""

from elastrec.trainers.parameter_server.storage.bucket import Bucket, Changes, ThawedError
from elastrec.trainers.parameter_server.storage.memory import ServerMemoryError
from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

__all__ = ["Bucket", "Changes", "Lookup", "RowStore", "ServerMemoryError", "ThawedError"]
