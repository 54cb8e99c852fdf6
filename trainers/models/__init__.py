"""The built-in networks, all of one form, and the registry that also takes a user's own class.

A model is `Class(embedding_bag_collection, schema, **options)` with
`forward(dense_features_BI, sparse_features: KeyedJaggedTensor) -> logits_B`, or an output for each of its heads
(`heads`). It knows nothing of servers, shards or files; the embedding collection may be torchrec's own or the one over
the parameter servers.
"""

from elastrec.trainers.models.heads import Head, JobHeads, Losses, Targets
from elastrec.trainers.models.registry import build_model, model_class, takes_deduplicated
from elastrec.trainers.models.schema import FeatureSchema, embedding_tables

__all__ = [
    "FeatureSchema",
    "Head",
    "JobHeads",
    "Losses",
    "Targets",
    "build_model",
    "embedding_tables",
    "model_class",
    "takes_deduplicated",
]
