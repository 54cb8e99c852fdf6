"""FeatureSchema: a model's description of its inputs, and the embedding tables of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType

from elastrec.platform.specs.job import TrainingJob


@dataclass(frozen=True)
class FeatureSchema:
    """Names and sizes of a model's inputs.

    Attributes:
        dense_names: I dense features, columns of `dense_features_BI`; may be empty.
        sparse_names: F sparse features, keys of the KeyedJaggedTensor.
        embedding_dimension: D of the job file; a first-order model's rows have D + 1 numbers, the weight first.
        dimensions: of the sparse features whose table has a dimension of its own: that one, instead of D.
        tables: of these features, the name of the table.
        list_lengths: list features and how many ids a list of theirs has at most.
        attention: those of them that attention pools before the model gets them.
        label_names: H labels; a model without heads of its own has one output for each.
    """

    dense_names: tuple[str, ...]
    sparse_names: tuple[str, ...]
    embedding_dimension: int
    list_lengths: Mapping[str, int] = field(default_factory=dict)
    label_names: tuple[str, ...] = ("label",)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    attention: tuple[str, ...] = ()

    def width(self, names: Iterable[str] | None = None) -> int:
        """Numbers of the embeddings of these sparse features side by side; None: of all."""
        wanted = self.sparse_names if names is None else names
        return sum(self.dimensions.get(name, self.embedding_dimension) for name in wanted)

    @staticmethod
    def from_job(job: TrainingJob) -> FeatureSchema:
        spec, data = job.spec, job.spec.data
        common = spec.model.embedding_dimension
        odd = [f for f in data.sparse if spec.embedding_dimension(f.table_name) != common]
        return FeatureSchema(
            dense_names=tuple(feature.name for feature in data.dense),
            sparse_names=tuple(feature.name for feature in data.sparse),
            embedding_dimension=common,
            list_lengths={feature.name: data.list_length(feature) for feature in data.sparse if feature.is_list},
            label_names=tuple(label.name for label in data.label_columns),
            dimensions={feature.name: spec.embedding_dimension(feature.table_name) for feature in odd},
            tables={feature.name: feature.table_name for feature in odd},
            attention=data.attention_features,
        )


def embedding_tables(job: TrainingJob) -> list[EmbeddingBagConfig]:
    """One torchrec table per embedding table of the job, in order of first use.

    `num_embeddings` is the table's `hash_size`, or 1 for a table that grows: only torchrec's own in-memory
    collection reads it.
    """
    data = job.spec.data
    tables = []
    for name in data.tables:
        features = [feature for feature in data.sparse if feature.table_name == name]
        tables.append(
            EmbeddingBagConfig(
                name=name,
                embedding_dim=job.spec.row_dimension(name),
                num_embeddings=job.spec.table(name).hash_size or 1,
                feature_names=[feature.name for feature in features],
                # Single ids and lists that attention pools are neither summed nor averaged.
                pooling=PoolingType.MEAN
                if any(feature.is_list and feature.pooling == "mean" for feature in features)
                else PoolingType.SUM,
            )
        )
    return tables
