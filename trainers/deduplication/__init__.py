"""Models on rows without repeats: the torch form of deduplicated batches, and pooling that computes each row once.

Every module here accepts a plain and a deduplicated batch and gives the same result for both (RecD §5).
`elastrec.platform.data` builds the deduplicated form; files, servers and the choice of features do not belong here.
"""

from elastrec.trainers.deduplication.attention import AttentionBags, AttentionPooling
from elastrec.trainers.deduplication.bags import DeduplicatedBags
from elastrec.trainers.deduplication.features import DeduplicatedFeatures
from elastrec.trainers.deduplication.jagged import expand_rows, jagged_index_select
from elastrec.trainers.deduplication.lists import Lists, lists_of, pool_lists
from elastrec.trainers.deduplication.target_attention import TargetAttention
from elastrec.trainers.deduplication.tensor import InverseKeyedJaggedTensor
from elastrec.trainers.deduplication.transformer import TargetTransformer, TransformerPooling

__all__ = [
    "AttentionBags",
    "AttentionPooling",
    "DeduplicatedBags",
    "DeduplicatedFeatures",
    "InverseKeyedJaggedTensor",
    "Lists",
    "TargetAttention",
    "TargetTransformer",
    "TransformerPooling",
    "expand_rows",
    "jagged_index_select",
    "lists_of",
    "pool_lists",
]
