"""RemoteEmbeddingBagCollection: torchrec's EmbeddingBagCollection with its rows on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.some import repeated
from elastrec.trainers.deduplication.tensor import has_same_ids
from elastrec.trainers.embedding.client import ParameterClient, Pulled
from elastrec.trainers.embedding.kernels import pool_rows, spread_gradient
from elastrec.trainers.embedding.progress import Blocks, Keys, Progress, Request, RowGradients

Array = np.ndarray[Any, Any]

log = structlog.get_logger(__name__)


class RemoteEmbeddingBagCollection(nn.Module):
    """Pooled embeddings over parameter servers; a drop-in for `torchrec.EmbeddingBagCollection`.

    Input: KeyedJaggedTensor with the tables' features as keys, in any order, bags of any length; values are 64-bit
    ids of an open vocabulary (`num_embeddings` is not used). Output: KeyedTensor [B, sum of dimensions], blocks in the
    order of the tables and their features, as torchrec's.

    In train mode a missing row has its first value; in eval mode pulls are read-only and a missing row is zero.

        pulled = collection.prefetch(features, dense=True)    # optional: starts the pull early
        logits = model(dense_features, features)
        loss(logits).backward()
        left = collection.take_row_gradients()
        client.push(left.pulled, left.gradients, flat.gradients, samples, origin)

    Args:
        tables: names and dimensions must be those of the client's plan; pooling SUM or MEAN.
        client: connected before the first forward pass.
        sequences: features of the tables that the output leaves out, because the model asks for their `rows`.
    """

    def __init__(
        self, tables: list[EmbeddingBagConfig], client: ParameterClient, sequences: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._check(tables, client)
        self._tables = tables
        self.client = client
        plan = client.plan
        uses = [(table, feature) for table in tables for feature in table.feature_names]
        is_pooled = [feature not in sequences for _, feature in uses]
        shared = repeated(feature for _, feature in uses)
        names = [f"{feature}@{table.name}" if feature in shared else feature for table, feature in uses]
        self._names = [name for name, pooled in zip(names, is_pooled, strict=True) if pooled]
        lengths = [table.embedding_dim if pooled else 0 for (table, _), pooled in zip(uses, is_pooled, strict=True)]
        self._lengths = [length for length in lengths if length]
        self._width = sum(lengths)
        starts = np.concatenate(([0], np.cumsum(lengths))).tolist()
        numbers = np.cumsum([0, *is_pooled]).tolist()
        # Routing goes table by table in plan order, pooling in the order of the output.
        order = sorted(range(len(uses)), key=lambda use: plan.by_name[uses[use][0].name].index)
        self._routed_features = [uses[use][1] for use in order]
        self._routed_tables = np.array([plan.by_name[uses[use][0].name].index for use in order], np.int64)
        self._blocks: list[Blocks] = []
        for group in plan.groups:
            mine = [
                use
                for use, (table, _) in enumerate(uses)
                if group.first_table <= plan.by_name[table.name].index < group.end_table and is_pooled[use]
            ]
            self._blocks.append(
                Blocks(
                    [uses[use][1] for use in mine],
                    np.array([numbers[use] for use in mine], np.int64),
                    np.array([starts[use] for use in mine], np.int64),
                    np.array([uses[use][0].pooling is PoolingType.MEAN for use in mine], np.bool_),
                )
            )
        self._group_of_feature = {
            feature: next(g.index for g in plan.groups if g.first_table <= plan.by_name[table.name].index < g.end_table)
            for table, feature in uses
        }
        # Autograd calls a function's backward only if an input requires a gradient; this one is not a parameter of the
        # model.
        self._anchor = torch.empty(0, requires_grad=True)
        self._has_warned = False
        self._progress = Progress()

    @staticmethod
    def _check(tables: list[EmbeddingBagConfig], client: ParameterClient) -> None:
        problems = []
        known = client.plan.by_name
        for config in tables:
            if config.name not in known:
                problems.append(FieldProblem("tables", repr(config.name), f"the job's tables {sorted(known)}"))
            elif known[config.name].dimension != config.embedding_dim:
                problems.append(
                    FieldProblem(
                        f"tables.{config.name}.embedding_dim",
                        str(config.embedding_dim),
                        f"{known[config.name].dimension}, the row dimension on the servers",
                    )
                )
            if config.pooling not in (PoolingType.SUM, PoolingType.MEAN):
                problems.append(FieldProblem(f"tables.{config.name}.pooling", str(config.pooling), "SUM, MEAN"))
        features = [feature for config in tables for feature in config.feature_names]
        problems += [
            FieldProblem(f"tables feature {feature!r}", "used by two tables", "one table per feature")
            for feature in repeated(features)
        ]
        if problems:
            raise SpecError(problems, "the tables of RemoteEmbeddingBagCollection")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._tables

    def is_weighted(self) -> bool:
        return False

    @property
    def pooled_names(self) -> list[str]:
        """Features of the output, in its order."""
        return list(self._names)

    def prefetch(
        self, features: KeyedJaggedTensor, *, dense: bool = False, repeats: Callable[[], Tensor] | None = None
    ) -> Pulled:
        """Starts the pull that `forward(features)` of these features will wait for.

        Args:
            dense: also pull the dense parameters (`Pulled.dense`).
            repeats: returns the number of sightings of each id, int64 `[N]`; called only if servers count them.
                Default: one.
        """
        request = self._ask(features, dense, repeats)
        self._progress.requests.append(request)
        return request.pulled

    def discard(self, pulled: Pulled) -> None:
        """Drops a prefetched pull whose minibatch is over, if the model has used other features and pulled again."""
        requests = self._progress.requests
        kept = [request for request in requests if request.pulled is not pulled]
        if len(kept) < len(requests) and not self._has_warned:
            self._has_warned = True
            log.warning("pulled_twice", reason="the model passes other features than those of the minibatch")
        self._progress.requests = kept

    def forget(self) -> None:
        """Drops prefetched pulls and gradients; for use after a change of routing."""
        self._progress = Progress(keys=self._progress.keys)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pools the rows of a batch. In training, a repeated call before `take_row_gradients` uses the same rows again.

        Raises:
            RoutingChangedError, TransportError: see ParameterClient.
        """
        _, pooled = _Pool.apply(self._anchor, self, self._pooled_once(features), 0, None)
        return KeyedTensor(self._names, self._lengths, pooled)

    def pool_apart(self, features: KeyedJaggedTensor, first: int, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        """Like `forward`, but in the layout of a layer that takes concatenated pooled rows, without another copy.

        Args:
            first: number of values at the beginning of each pooled row that are returned separately.
            beside: [B, I] float32, appended to the others; gets no gradient.

        Returns:
            The first numbers `[B, K * first]`, and all others `[B, sum of (D - first) + I]`, blocks in their order.

        Raises:
            RoutingChangedError, TransportError: see ParameterClient.
        """
        apart: tuple[Tensor, Tensor] = _Pool.apply(self._anchor, self, self._pooled_once(features), first, beside)
        return apart

    def _pooled_once(self, features: KeyedJaggedTensor) -> Request:
        progress = self._progress
        if progress.open_is_pooled and not self.training:
            progress.open = None
        request = self._opened(features)
        progress.open_is_pooled = True
        return request

    def rows(self, features: KeyedJaggedTensor, name: str) -> Tensor:
        """One row for each id of a feature, `[L, D]`, in their order, not pooled.

        Belongs to the forward pass of the same object before or after it: one pull serves both.

        Raises:
            RoutingChangedError, TransportError: see ParameterClient.
        """
        found: Tensor = _Rows.apply(self._anchor, self, self._opened(features), name)
        return found

    def _opened(self, features: KeyedJaggedTensor) -> Request:
        progress = self._progress
        request = next((each for each in progress.requests if has_same_ids(features, each.features)), None)
        if request is not None:
            progress.requests = [each for each in progress.requests if each is not request]
        elif progress.open is not None and has_same_ids(features, progress.open.features):
            return progress.open
        else:
            request = self._ask(features, dense=False)
        progress.open, progress.open_is_pooled = request, False
        return request

    def take_row_gradients(self) -> RowGradients:
        """The gradients of one pull, the sum of all backward passes through its rows; each is handed out once.

        Raises:
            RuntimeError: backward passes since the last call did not reach rows of exactly one pull.
        """
        left = self._progress.left
        if len(left) != 1:
            raise RuntimeError(
                f"gradients of {len(left)} pulls wait for take_row_gradients, exactly one must; the loss has to "
                "depend on the embeddings of its own minibatch"
            )
        self._progress.open = None
        return left.pop()

    def _ask(self, features: KeyedJaggedTensor, dense: bool, repeats: Callable[[], Tensor] | None = None) -> Request:
        if features.weights_or_none() is not None:
            raise ValueError("weighted bags are not supported; use a KeyedJaggedTensor without weights")
        keys, batch = self._keys_of(features), features.stride()
        offsets = np.ascontiguousarray(features.offsets().numpy(), np.int64)
        values = np.ascontiguousarray(features.values().numpy(), np.int64)
        first_bags = keys.routed * batch
        starts, ends = offsets[first_bags], offsets[first_bags + batch]
        routed = self.client.router.route(values, starts, ends, self._routed_tables)
        if repeats is not None and self.client.plan.counts_sightings:
            routed = self.client.router.recounted(routed, repeats().numpy(), starts, ends, self._routed_tables)
        pulled = self.client.pull(routed, read_only=not self.training, dense=dense)
        return Request(features, pulled, offsets, keys, batch)

    def _keys_of(self, features: KeyedJaggedTensor) -> Keys:
        known, names = self._progress.keys, features.keys()
        if known is not None and known.names == names:
            return known
        positions = {name: index for index, name in enumerate(names)}
        if missing := [name for name in self._routed_features if name not in positions]:
            raise ValueError(f"the features {missing} are not among the batch's keys {names}")
        self._progress.keys = known = Keys(
            list(names),
            positions,
            np.array([positions[name] for name in self._routed_features], np.int64),
            [np.array([positions[name] for name in blocks.names], np.int64) for blocks in self._blocks],
        )
        return known

    def _pool(self, request: Request, first: int, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        firsts = torch.empty(request.batch, first * len(self._names))
        own = self._width - firsts.shape[1]
        out = torch.empty(request.batch, own if beside is None else own + beside.shape[1])
        if beside is not None:
            out[:, own:] = beside
        for rows, blocks, features in zip(request.pulled.rows(), self._blocks, request.keys.blocks, strict=True):
            first_columns = first * blocks.numbers
            pool_rows(
                rows, request.pulled.routed.inverse, request.offsets, features,
                blocks.columns - first_columns, first_columns, blocks.is_mean, request.batch, first, firsts.numpy(),
                out.numpy(),
            )  # fmt: skip
        return firsts, out

    def _rows(self, request: Request, name: str) -> Tensor:
        rows = request.pulled.rows()[self._group_of_feature[name]]
        return torch.from_numpy(rows[request.pulled.routed.inverse[self._run(request, name)]])

    def _gradients(self, request: Request) -> list[Array]:
        """The buffer in which backward adds the gradients of a request's pooled and plain rows."""
        for left in self._progress.left:
            if left.pulled is request.pulled:
                return left.gradients
        gradients = [np.zeros(rows.shape, np.float32) for rows in request.pulled.rows()]
        self._progress.left.append(RowGradients(request.pulled, gradients))
        return gradients

    def _spread_rows(self, request: Request, name: str, gradient: Tensor) -> None:
        inverse = request.pulled.routed.inverse[self._run(request, name)]
        nothing, zero = np.empty((len(inverse), 0), np.float32), np.zeros(1, np.int64)
        spread_gradient(
            nothing, _plain(gradient), inverse, np.arange(len(inverse) + 1), zero, zero, zero, np.zeros(1, np.bool_),
            len(inverse), 0, self._gradients(request)[self._group_of_feature[name]],
        )  # fmt: skip

    @staticmethod
    def _run(request: Request, name: str) -> slice:
        """The range of a feature's ids in those of the batch."""
        first = request.keys.positions[name] * request.batch
        return slice(int(request.offsets[first]), int(request.offsets[first + request.batch]))

    def _spread(self, request: Request, first: int, first_gradient: Tensor, gradient: Tensor) -> None:
        firsts, source = _plain(first_gradient), _plain(gradient)
        for out, blocks, features in zip(self._gradients(request), self._blocks, request.keys.blocks, strict=True):
            first_columns = first * blocks.numbers
            spread_gradient(
                firsts, source, request.pulled.routed.inverse, request.offsets, features,
                blocks.columns - first_columns, first_columns, blocks.is_mean, request.batch, first, out,
            )  # fmt: skip


def _plain(gradient: Tensor) -> Array:
    plain: Array = gradient.contiguous().float().numpy()
    return plain


class _Pool(torch.autograd.Function):
    """Pooling of pulled rows; its gradient goes to the collection, not to any tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        collection: RemoteEmbeddingBagCollection,
        request: Request,
        first: int,
        beside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.collection, ctx.request, ctx.first = collection, request, first
        return collection._pool(request, first, beside)

    @staticmethod
    def backward(ctx: Any, first_gradient: Tensor, gradient: Tensor) -> tuple[None, None, None, None, None]:
        ctx.collection._spread(ctx.request, ctx.first, first_gradient, gradient)
        return None, None, None, None, None


class _Rows(torch.autograd.Function):
    """Pulled rows without pooling; their gradient is added to that of the pooled ones."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, collection: RemoteEmbeddingBagCollection, request: Request, name: str
    ) -> Tensor:
        ctx.collection, ctx.request, ctx.name = collection, request, name
        return collection._rows(request, name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.collection._spread_rows(ctx.request, ctx.name, gradient)
        return None, None, None, None
