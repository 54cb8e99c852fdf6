"""Evaluation shards: predictions without updates are added to a sketch per shard, which is sent when the shard is
done."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from elastrec.platform.data.deduplicating.deduplicated_batch import expand_batch
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.transport.messages.job import Shard, ShardProgress
from elastrec.trainers.worker.predictions import Predictions, PredictionsMetadata, write_predictions
from elastrec.trainers.worker.trainer import Prediction


class ShardEvaluation:
    """One evaluation shard, from its first row, because a lost shard is evaluated again completely.

    Args:
        folder_uri: folder of predictions, for shards that keep them.
        features: names of the pooled rows' features, in order.
    """

    def __init__(self, shard: Shard, folder_uri: str, features: list[str]) -> None:
        self.shard = shard
        self._folder_uri = folder_uri
        self._features = features
        self._sketches = HeadSketches()
        self._kept: list[tuple[pa.RecordBatch, Prediction]] = []

    def add(self, batch: pa.RecordBatch, prediction: Prediction) -> None:
        """Adds the rows of one minibatch; kept rows are stored without deduplication.

        Raises:
            DataError: a prediction is not a probability, or not finite.
        """
        self._sketches.update(prediction.heads)
        if self.shard.keep_predictions:
            self._kept.append((expand_batch(batch), prediction))

    def completion(self, last: ShardProgress) -> ShardProgress:
        """Writes the predictions to be kept; returns the report that the shard is done.

        Args:
            last: the report of its last minibatch.

        Raises:
            CheckpointError: the predictions could not be written.
        """
        if self._kept:
            split = self.shard.split
            heads = [head.head for head in self._kept[0][1].heads]
            metadata = PredictionsMetadata(
                start=split.range.start, length=split.range.length, features=self._features, heads=heads
            )
            together = Predictions(
                metadata=metadata,
                batch=pa.concat_batches([batch for batch, _ in self._kept]),
                prediction=np.concatenate([prediction.prediction_BH for _, prediction in self._kept]),
                pooled=np.concatenate([prediction.pooled_BX for _, prediction in self._kept]),
            )
            write_predictions(self._folder_uri, split.number, together)
        return msgspec.structs.replace(last, sketch=self._sketches.encode())
