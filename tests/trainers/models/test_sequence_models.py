"""Models that pool histories themselves, compared with plain loops over rows, on torchrec's own collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import ModelSpec
from elastrec.trainers.models import FeatureSchema, build_model

D, B, IDS = 4, 6, 11
LENGTHS = {"seen": [0, 2, 3, 1, 0, 4], "liked": [1, 0, 2, 2, 3, 0]}
SCHEMA = FeatureSchema(("x0",), ("user", "item", "seen", "liked"), D, {"seen": 4, "liked": 5})


def collection() -> EmbeddingBagCollection:
    def table(name: str, features: list[str], pooling: PoolingType = PoolingType.SUM) -> EmbeddingBagConfig:
        return EmbeddingBagConfig(
            name=name, embedding_dim=D, num_embeddings=IDS, feature_names=features, pooling=pooling
        )

    return EmbeddingBagCollection(
        tables=[table("u", ["user"]), table("i", ["item", "seen"]), table("l", ["liked"], PoolingType.MEAN)]
    )


def inputs() -> tuple[torch.Tensor, KeyedJaggedTensor]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([[1] * B, [1] * B, LENGTHS["seen"], LENGTHS["liked"]])
    values = torch.randint(0, IDS, (int(lengths.sum()),), generator=generator)
    dense = torch.randn(B, 1, generator=generator)
    return dense, KeyedJaggedTensor(keys=list(SCHEMA.sparse_names), values=values, lengths=lengths.reshape(-1))


def rows_of(tables: EmbeddingBagCollection, table: str, ids: torch.Tensor) -> torch.Tensor:
    return tables.embedding_bags[table].weight[ids]


def weighed(unit: Any, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """DIN eq. 3, element by element."""
    total = torch.zeros(D)
    for x in rows:
        hidden = unit.of_row(x) + unit.of_target(target) + unit.of_product(x * target)
        total = total + unit.score(unit.activation(hidden)) * x
    return total


def din(model: Any, row: int, rows: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    # The order of the options: liked by item first, then seen by user.
    return [
        weighed(model.units[0], rows["liked"], rows["item"][0]),
        weighed(model.units[1], rows["seen"], rows["user"][0]),
    ]


def bst(model: Any, row: int, rows: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for name, encoder in zip(("liked", "seen"), model.encoders, strict=True):
        if not len(rows[name]):
            found.append(torch.zeros(D))
            continue
        x = (rows[name] + encoder.positions_MD[: len(rows[name])]).unsqueeze(0)
        for layer in encoder.layers:
            q, k, v = layer.inputs(layer.attention_norm(x))[0].view(-1, 3, 2, D // 2).permute(1, 2, 0, 3)
            shares = torch.softmax(q @ k.transpose(1, 2) / (D // 2) ** 0.5, dim=-1)
            x = x + layer.output((shares @ v).transpose(0, 1).reshape(1, -1, D))
            x = x + layer.hidden(layer.hidden_norm(x))
        found.append(encoder.last_norm(x)[0].mean(dim=0))
    return found


@pytest.mark.parametrize(
    ("name", "options", "histories"),
    [
        ("din", {"attention": {"liked": "item", "seen": "user"}, "attention_size": 5, "layer_sizes": [7]}, din),
        ("bst", {"sequences": ["liked", "seen"], "blocks": 2, "layer_sizes": [7]}, bst),
    ],
)
def test_a_model_computes_its_formula_row_by_row(
    name: str, options: dict[str, Any], histories: Callable[..., list[torch.Tensor]]
) -> None:
    tables = collection()
    model: Any = build_model(
        ModelSpec(architecture=name, embedding_dimension=D, options=options), tables, SCHEMA, seed=5
    )
    dense, sparse = inputs()
    logits = model(dense_features=dense, sparse_features=sparse)
    table_of = {"user": "u", "item": "i", "seen": "i", "liked": "l"}
    parts = {key: sparse[key].to_dense() for key in SCHEMA.sparse_names}
    for row in range(B):
        rows = {key: rows_of(tables, table_of[key], parts[key][row]) for key in parts}
        whole = torch.cat([rows["user"][0], rows["item"][0], *histories(model, row, rows), dense[row]])
        torch.testing.assert_close(logits[row], model.mlp(whole.unsqueeze(0))[0], rtol=1e-4, atol=1e-5)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_row_of_a_history_is_trained_through_the_model(name: str = "bst") -> None:
    tables = collection()
    spec = ModelSpec(architecture=name, embedding_dimension=D, options={"sequences": ["liked", "seen"]})
    dense, sparse = inputs()
    build_model(spec, tables, SCHEMA, seed=5)(dense, sparse).sum().backward()
    touched = tables.embedding_bags["l"].weight.grad.abs().sum(dim=1) > 0
    assert touched.nonzero().squeeze(1).tolist() == sorted(set(sparse["liked"].values().tolist()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("din", {}, "options.attention is missing"),
        ("din", {"attention": ["seen"]}, "a mapping from list features"),
        ("din", {"attention": {}}, "at least one list feature, each once: seen, liked"),
        ("din", {"attention": {"user": "item"}}, "at least one list feature, each once: seen, liked"),
        (
            "din",
            {"attention": {"seen": "basket"}},
            r"attention.seen: 'basket' is not allowed; allowed: user, item, liked",
        ),
        ("din", {"attention": {"seen": "liked", "liked": "item"}}, r"attention.seen: 'liked'"),
        ("din", {"attention": {"seen": "item"}, "attention_size": 0}, "attention_size: 0"),
        ("bst", {}, "options.sequences is missing"),
        ("bst", {"sequences": "seen"}, "at least one list feature"),
        ("bst", {"sequences": ["seen", "seen"]}, "each once"),
        ("bst", {"sequences": ["seen"], "heads": 3}, "heads: 3 is not allowed; allowed: a divisor"),
        ("bst", {"sequences": ["seen"], "blocks": 0}, "blocks: 0"),
    ],
)
def test_invalid_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    spec = ModelSpec(architecture=name, embedding_dimension=D, options=options)
    with pytest.raises(SpecError, match=message):
        build_model(spec, collection(), SCHEMA, seed=0)


def test_only_the_model_pools_a_history() -> None:
    assert ModelSpec(architecture="din", options={"attention": {"a": "b", "c": "b"}}).sequence_features == ("a", "c")
    assert ModelSpec(architecture="bst", options={"sequences": ["a"]}).sequence_features == ("a",)
    assert ModelSpec(architecture="bst", options={"sequences": {"a": "b"}}).sequence_features == ("a",)
    assert ModelSpec(architecture="dlrm", options={"sequences": ["a"]}).sequence_features == ()
    assert ModelSpec(architecture="mine:Model", unpooled_features=("a",)).sequence_features == ("a",)
