"""Pooling equals a loop in plain Python, and gives the same result on plain and deduplicated batches."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.trainers.deduplication import (
    AttentionBags,
    AttentionPooling,
    DeduplicatedBags,
    DeduplicatedFeatures,
    Lists,
    TargetAttention,
    TransformerPooling,
    lists_of,
    pool_lists,
)
from elastrec.trainers.deduplication.jagged import expand_rows, softmax_lists, sum_lists
from elastrec.trainers.models import FeatureSchema
from elastrec.trainers.models.dlrm import Dlrm
from tests.trainers.deduplication.grouping import grouped

D, IDS = 8, 40
POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: AttentionPooling(D),
    "transformer": lambda: TransformerPooling(D, 9, heads=2, layers=2),
}


def sessions(rows: int = 60, per_session: int = 7, seed: int = 0, features: int = 2) -> KeyedJaggedTensor:
    """Lists that stay for a session, some of them empty."""
    generator = torch.Generator().manual_seed(seed)
    lengths, values = [], []
    for _ in range(features):
        pool = [torch.randint(0, IDS, (n,), generator=generator) for n in (4, 0, 9, 1, 3, 5, 2, 7, 6)]
        for row in range(rows):
            picked = pool[(row // per_session) % len(pool)]
            values.append(picked)
            lengths.append(len(picked))
    return KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(features)], values=torch.cat(values), lengths=torch.tensor(lengths), stride=rows
    )


class Pooled(nn.Module):
    """Lists of features, each from a table of its own, pooled by a module each: `[B, 2 D]`."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(IDS, D) for name in ("f0", "f1")})
        self.poolings = nn.ModuleDict({name: make() for name in ("f0", "f1")})

    def rows(self, features: KeyedJaggedTensor, name: str) -> Tensor:
        rows_LD: Tensor = self.tables[name](features[name].values())
        return rows_LD

    def forward(self, features: DeduplicatedFeatures | KeyedJaggedTensor) -> Tensor:
        return pool_lists({name: lists_of(self, features, name) for name in self.tables}, dict(self.poolings.items()))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def assert_same_step(
    plain: nn.Module,
    deduplicated: nn.Module,
    run_plain: Callable[[], Tensor],
    run_deduplicated: Callable[[], Tensor],
    within: float = 1e-9,
) -> None:
    """Values and all gradients agree."""
    first, second = run_plain(), run_deduplicated()
    torch.testing.assert_close(second, first, rtol=within, atol=within)
    weight = torch.linspace(-1, 2, first.numel(), dtype=first.dtype).view_as(first)
    (first * weight).sum().backward()
    (second * weight).sum().backward()
    assert gradients(plain).keys() == gradients(deduplicated).keys() != set()
    for name, gradient in gradients(plain).items():
        torch.testing.assert_close(gradients(deduplicated)[name], gradient, rtol=10 * within, atol=10 * within)


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_gives_the_same_values_and_gradients_on_distinct_rows(kind: str) -> None:
    torch.manual_seed(0)
    plain = Pooled(POOLINGS[kind]).double()
    deduplicated = copy.deepcopy(plain)
    features = sessions()
    group = grouped(features, ["f0", "f1"])
    assert group.distinct_rows <= 9
    repeated = DeduplicatedFeatures(None, (group,))
    assert_same_step(plain, deduplicated, lambda: plain(features), lambda: deduplicated(repeated))


@pytest.mark.parametrize("kind", POOLINGS)
def test_a_list_pools_alike_alone_and_among_others(kind: str) -> None:
    """Neither the neighbours nor the padding that they cause may show."""
    torch.manual_seed(0)
    pooling = POOLINGS[kind]().double()
    rows = torch.randn(14, D, dtype=torch.float64)
    together = pooling(rows, torch.tensor([0, 4, 4, 13, 14]))
    for u, (begin, end) in enumerate([(0, 4), (4, 4), (4, 13), (13, 14)]):
        alone = pooling(rows[begin:end], torch.tensor([0, end - begin]))
        torch.testing.assert_close(together[u : u + 1], alone)
    assert (together[1] == 0).all()


@pytest.mark.parametrize("kind", POOLINGS)
def test_batches_of_empty_lists_only_give_zeros_and_a_backward_pass(kind: str) -> None:
    pooling = POOLINGS[kind]().double()
    rows = torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
    out = pooling(rows, torch.zeros(4, dtype=torch.int64))
    assert out.shape == (3, D) and (out == 0).all()
    out.sum().backward()


def test_attention_pooling_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    pooling = AttentionPooling(D)
    rows = torch.randn(3, D)
    weights = torch.softmax(pooling.score(torch.tanh(pooling.project(rows))).squeeze(1), 0)
    torch.testing.assert_close(pooling(rows, torch.tensor([0, 3]))[0], weights @ rows)


def test_scores_of_any_size_do_not_overflow() -> None:
    pooling = AttentionPooling(D)
    with torch.no_grad():
        pooling.score.weight.fill_(1e30)
    out = pooling(torch.randn(6, D), torch.tensor([0, 2, 6]))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("ids", [2, 300, 4000])
def test_shares_of_long_lists_are_a_whole_under_autocast(ids: int) -> None:
    """With scores in bfloat16, as the job's `precision` makes them, values and gradients are those of float32."""
    torch.manual_seed(0)
    pooling = AttentionPooling(D)
    low = copy.deepcopy(pooling)
    rows = 1 + 0.1 * torch.randn(ids, D)
    offsets = torch.tensor([0, ids])
    weight = torch.linspace(-1, 2, D)
    expected = pooling(rows, offsets)
    with torch.autocast("cpu", torch.bfloat16):
        found = low(rows, offsets)
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    exact = gradients(pooling)["project.weight"]
    assert (gradients(low)["project.weight"] - exact).norm() < 0.05 * exact.norm()


def test_the_transformer_sees_the_order_of_a_list() -> None:
    torch.manual_seed(0)
    pooling = TransformerPooling(D, 4)
    rows = torch.randn(3, D)
    offsets = torch.tensor([0, 3])
    assert not torch.allclose(pooling(rows, offsets), pooling(rows.flip(0), offsets))


def test_the_transformer_agrees_with_torchs_own_layer() -> None:
    torch.manual_seed(0)
    ours = TransformerPooling(D, 6, heads=2, layers=1, hidden=12).double().eval()
    theirs = nn.TransformerEncoderLayer(D, 2, 12, dropout=0.0, batch_first=True, norm_first=True).double().eval()
    layer = ours.layers[0]
    theirs.load_state_dict(
        {
            "self_attn.in_proj_weight": layer.inputs.weight, "self_attn.in_proj_bias": layer.inputs.bias,
            "self_attn.out_proj.weight": layer.output.weight, "self_attn.out_proj.bias": layer.output.bias,
            "linear1.weight": layer.hidden[0].weight, "linear1.bias": layer.hidden[0].bias,
            "linear2.weight": layer.hidden[2].weight, "linear2.bias": layer.hidden[2].bias,
            "norm1.weight": layer.attention_norm.weight, "norm1.bias": layer.attention_norm.bias,
            "norm2.weight": layer.hidden_norm.weight, "norm2.bias": layer.hidden_norm.bias,
        }
    )  # fmt: skip
    rows = torch.randn(6, D, dtype=torch.float64)
    expected = ours.last_norm(theirs((rows + ours.positions_MD).unsqueeze(0))).mean(dim=1)
    torch.testing.assert_close(ours(rows, torch.tensor([0, 6])), expected)


def test_lists_longer_than_the_positions_and_uneven_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="list of 5 ids is not allowed; allowed: max_length 4"):
        TransformerPooling(D, 4)(torch.randn(5, D), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="heads: 3 is not allowed"):
        TransformerPooling(D, 4, heads=3)


def test_target_attention_is_the_same_on_distinct_rows_and_follows_the_paper() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleDict({"attention": TargetAttention(D, 6), "rows": nn.Embedding(IDS, D)}).double()
    deduplicated = copy.deepcopy(plain)
    features = sessions()
    group = grouped(features, ["f0", "f1"])
    target = torch.randn(60, D, dtype=torch.float64)
    jagged, (values, offsets) = features["f1"], group.feature("f1")

    def lists(of: nn.ModuleDict) -> Lists:
        return Lists(of["rows"](jagged.values()), jagged.offsets().to(torch.int64), None)

    assert_same_step(
        plain,
        deduplicated,
        lambda: plain["attention"](lists(plain), target),
        lambda: deduplicated["attention"](Lists(deduplicated["rows"](values), offsets, group.inverse_lookup), target),
    )
    unit = plain["attention"]
    rows = plain["rows"](features["f1"].to_dense()[0])
    expected = torch.zeros(D, dtype=torch.float64)
    for x in rows:
        # W · (x, t, x − t, x * t) = (W1 + W3) x + (W2 − W3) t + W4 (x * t)
        hidden = unit.of_row(x) + unit.of_target(target[0]) + unit.of_product(x * target[0])
        expected = expected + unit.score(unit.activation(hidden)) * x
    torch.testing.assert_close(unit(lists(plain), target)[0], expected)


def _collection() -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name="t0", embedding_dim=D, num_embeddings=IDS, feature_names=["f0", "f2"]),
        EmbeddingBagConfig(
            name="t1", embedding_dim=D, num_embeddings=IDS, feature_names=["f1"], pooling=PoolingType.MEAN
        ),
        EmbeddingBagConfig(name="t2", embedding_dim=D, num_embeddings=IDS, feature_names=["f3"]),
    ]
    return EmbeddingBagCollection(tables=tables)


@pytest.mark.parametrize("names", [("f1",), ("f3", "f0")], ids=str)
@pytest.mark.parametrize("deduplicates", [False, True])
def test_attention_takes_the_place_of_the_collections_own_pooling(names: tuple[str, ...], deduplicates: bool) -> None:
    torch.manual_seed(0)
    collection = _collection()
    bags = AttentionBags(DeduplicatedBags(collection) if deduplicates else collection, names)
    features = sessions(features=4)
    given: DeduplicatedFeatures | KeyedJaggedTensor = features
    if deduplicates:
        keys = ["f0", "f1", "f2", "f3"]
        given = DeduplicatedFeatures(None, (grouped(features, keys),))
    pooled, plain = bags(given), collection(features)
    assert list(pooled.keys()) == list(plain.keys()) == ["f0", "f2", "f1", "f3"]
    tables = {"f0": "t0", "f1": "t1", "f2": "t0", "f3": "t2"}
    for name in tables:
        if name not in names:
            torch.testing.assert_close(pooled[name], plain[name])
            continue
        pooling = bags.get_submodule(f"pooling_{name}")
        for row, ids in enumerate(features[name].to_dense()):
            rows = collection.embedding_bags[tables[name]].weight[ids]
            expected = pooling(rows, torch.tensor([0, len(ids)]))[0]
            torch.testing.assert_close(pooled[name][row], expected)


@pytest.mark.parametrize(
    "groups", [[], [["f0"]], [["f3", "f1"]], [["f0", "f2"], ["f1"]], [["f0", "f1", "f2", "f3"]]], ids=str
)
def test_a_model_of_the_zoo_trains_alike_on_deduplicated_bags(groups: list[list[str]]) -> None:
    torch.manual_seed(0)
    schema = FeatureSchema(("d",), ("f0", "f2", "f1", "f3"), D)
    plain = Dlrm(DeduplicatedBags(_collection()), schema, bottom_layer_sizes=(8,), top_layer_sizes=(8,))
    deduplicated = copy.deepcopy(plain)
    features = sessions(features=4)
    in_groups = {name for group in groups for name in group}
    rest = [name for name in features.keys() if name not in in_groups]  # noqa: SIM118
    left = None
    if rest:
        parts = features.split([1] * 4)
        chosen = [parts[int(name[1])] for name in rest]
        left = KeyedJaggedTensor(
            keys=rest,
            values=torch.cat([part.values() for part in chosen]),
            lengths=torch.cat([part.lengths() for part in chosen]),
        )
    mixed = DeduplicatedFeatures(left, tuple(grouped(features, group) for group in groups))
    dense = torch.randn(60, 1)
    # torchrec's collection gives float32 whatever its rows are.
    assert_same_step(
        plain, deduplicated, lambda: plain(dense, features), lambda: deduplicated(dense, mixed), within=1e-5
    )


def test_gradients_are_those_of_small_differences_also_for_empty_and_single_lists() -> None:
    torch.manual_seed(1)
    offsets = torch.tensor([0, 3, 3, 4, 9, 9])
    rows_LD = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    scores_L = torch.randn(9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows, scores: sum_lists(rows, offsets, scores), (rows_LD, scores_L))
    assert torch.autograd.gradcheck(lambda scores: softmax_lists(scores, offsets), (scores_L,))


def test_scores_beyond_the_range_of_exp_give_finite_weights() -> None:
    shares_L = softmax_lists(torch.tensor([1e4, 1e4, -1e4, 5.0, -3e38]), torch.tensor([0, 3, 3, 4, 5]))
    assert shares_L.tolist() == [0.5, 0.5, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part of a wider gradient"])
def test_expanded_rows_give_their_gradients_back_to_the_row_they_came_from(part: bool) -> None:
    rows_UD = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    index_B = torch.tensor([2, 0, 0, 3, 2, 0])

    def call(rows: Tensor) -> Tensor:
        expanded = expand_rows(rows, index_B)
        return torch.cat([expanded, expanded.sin()], dim=1) if part else expanded

    assert torch.equal(expand_rows(rows_UD, index_B), rows_UD[index_B])
    assert torch.autograd.gradcheck(call, (rows_UD,))
