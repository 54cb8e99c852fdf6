"""The rows of a parameter server: a `RowStore` per table group, of buckets that can be listed, moved and dropped.

Here belong cells, slabs, the index, versions and the kernels that read and change them; nothing that knows of workers,
records or the network. `docs/proposals/parameter_server.md` describes memory, locks and versions.
"""

from elastrec.trainers.parameter_server.storage.bucket import Bucket, Changes, ThawedError
from elastrec.trainers.parameter_server.storage.memory import ServerMemoryError
from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

__all__ = ["Bucket", "Changes", "Lookup", "RowStore", "ServerMemoryError", "ThawedError"]
