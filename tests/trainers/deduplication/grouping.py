"""Groups made from plain batches; in a job, the reader makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.data.deduplicating.deduplication import deduplicate
from elastrec.trainers.deduplication.tensor import InverseKeyedJaggedTensor


def grouped(features: KeyedJaggedTensor, keys: Sequence[str]) -> InverseKeyedJaggedTensor:
    """The named features of a plain batch as one group."""
    values, offsets = features.values().numpy(), features.offsets().numpy().astype(np.int64)
    parts = {}
    for key in keys:
        k, rows = features.keys().index(key), features.stride()
        bounds = offsets[k * rows : (k + 1) * rows + 1]
        parts[key] = pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(values))
    return InverseKeyedJaggedTensor.from_numpy(deduplicate(parts))
