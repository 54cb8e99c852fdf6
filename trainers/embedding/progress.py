"""What an embedding collection keeps of a step: the features of its batch, requested rows, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.embedding.pulled import Pulled

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RowGradients:
    """The row gradients of backward passes, for the servers.

    Attributes:
        pulled: the rows that the forward pass used.
        gradients: per table group [U_g, D_g] float32, laid out like `pulled.rows()`.
    """

    pulled: Pulled
    gradients: list[Array]


@dataclass(frozen=True)
class Blocks:
    """Output blocks of one table group: see `pool_rows`.

    Attributes:
        numbers: of each block among those of all groups.
        columns: where it begins when rows are not taken apart.
    """

    names: list[str]
    numbers: Array
    columns: Array
    is_mean: Array


@dataclass(frozen=True)
class Keys:
    """An order of a batch's features; that of all batches of a job is the same.

    Attributes:
        names: the batch's keys.
        positions: of each among them.
        routed: [F] int64, positions of the features in the order of routing.
        blocks: per table group [K] int64, positions of the features of its output blocks.
    """

    names: list[str]
    positions: dict[str, int]
    routed: Array
    blocks: list[Array]


@dataclass(frozen=True)
class Request:
    """A batch whose rows were requested."""

    features: KeyedJaggedTensor
    pulled: Pulled
    offsets: Array
    keys: Keys
    batch: int


@dataclass
class Progress:
    """What a step changes in a collection. Apart from it, because torch checks every new attribute of a module.

    Attributes:
        requests: prefetched, in their order.
        open: the request whose rows the model uses; `open_is_pooled`: whether it has pooled them.
        left: gradients that nobody has taken.
        keys: of the last batch.
    """

    requests: list[Request] = field(default_factory=list)
    open: Request | None = None
    open_is_pooled: bool = False
    left: list[RowGradients] = field(default_factory=list)
    keys: Keys | None = None
