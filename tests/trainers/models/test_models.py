"""Every built-in model against a plain numpy re-implementation of its paper's formula, on torchrec's own collection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torchrec.models.dlrm import InteractionArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.job import ModelSpec
from elastrec.trainers.models import FeatureSchema, build_model
from elastrec.trainers.models.dlrm import PairwiseProducts

D, B, ROWS = 4, 6, 11
Params = dict[str, np.ndarray]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def mlp(p: Params, prefix: str, x: np.ndarray) -> np.ndarray:
    layer = 0
    while f"{prefix}._mlp.{layer}._linear.weight" in p:
        x = relu(x @ p[f"{prefix}._mlp.{layer}._linear.weight"].T + p[f"{prefix}._mlp.{layer}._linear.bias"])
        layer += 1
    assert layer
    return x


def linear(p: Params, prefix: str, x: np.ndarray) -> np.ndarray:
    return x @ p[f"{prefix}.weight"].T + p[f"{prefix}.bias"]


def fields_of(p: Params, name: str, x: np.ndarray, e: np.ndarray) -> np.ndarray:
    if not x.shape[1]:
        return e
    return np.concatenate([e, x[:, :, None] * p[f"{name}.vectors_ID"][None]], axis=1)


def first_order(p: Params, name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = w.sum(1) + p[f"{name}.bias"]
    return out + x @ p[f"{name}.dense_weight"] if x.shape[1] else out


def wide_and_deep(p: Params, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    deep = mlp(p, "deep.hidden", np.concatenate([rows[:, :, 1:].reshape(B, -1), x], 1))
    return first_order(p, "wide", x, rows[:, :, 0]) + linear(p, "deep.output", deep)[:, 0]


def deepfm(p: Params, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    fields = fields_of(p, "dense_fields", x, rows[:, :, 1:])
    pairs = sum(
        (fields[:, i] * fields[:, j]).sum(1) for i in range(fields.shape[1]) for j in range(i + 1, fields.shape[1])
    )
    deep = mlp(p, "deep.dense_module.hidden", fields.reshape(B, -1))
    return first_order(p, "first_order", x, rows[:, :, 0]) + pairs + linear(p, "deep.dense_module.output", deep)[:, 0]


def xdeepfm(p: Params, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    fields = fields_of(p, "dense_fields", x, rows[:, :, 1:])
    maps, pooled, layer = fields, [], 0
    while f"cin.weights.{layer}" in p:
        weight = p[f"cin.weights.{layer}"].reshape(-1, maps.shape[1], fields.shape[1])
        maps = np.einsum("hij,bid,bjd->bhd", weight, maps, fields)
        pooled.append(maps.sum(2))
        layer += 1
    cin = np.concatenate(pooled, 1) @ p["cin_output.weight"][0]
    deep = mlp(p, "deep.hidden", fields.reshape(B, -1))
    return first_order(p, "linear", x, rows[:, :, 0]) + cin + linear(p, "deep.output", deep)[:, 0]


def dcn_v2(p: Params, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    x0 = np.concatenate([rows.reshape(B, -1), x], 1)
    crossed, layer = x0, 0
    while f"cross.bias.{layer}" in p:
        if f"cross.kernels.{layer}" in p:
            matrix = p[f"cross.kernels.{layer}"]
        else:
            matrix = p[f"cross.W_kernels.{layer}"] @ p[f"cross.V_kernels.{layer}"]
        crossed = x0 * (crossed @ matrix.T + p[f"cross.bias.{layer}"].reshape(-1)) + crossed
        layer += 1
    if p["output.weight"].shape[1] == 5:  # stacked: the MLP's last layer alone
        return linear(p, "output", mlp(p, "deep", crossed))[:, 0]
    return linear(p, "output", np.concatenate([crossed, mlp(p, "deep", x0)], 1))[:, 0]


def dlrm(p: Params, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    bottom = mlp(p, "bottom.model", x) if x.shape[1] else np.tile(p["constant_D"], (B, 1))
    vectors = np.concatenate([bottom[:, None], rows], 1)
    count = vectors.shape[1]
    pairs = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(count) for j in range(i + 1, count)]
    over = mlp(p, "top.model.0", np.concatenate([bottom, np.stack(pairs, 1)], 1))
    return linear(p, "top.model.1", over)[:, 0]


CASES: list[tuple[str, dict[str, object], Callable[..., np.ndarray]]] = [
    ("wide_and_deep", {"layer_sizes": [7, 5]}, wide_and_deep),
    ("deepfm", {"layer_sizes": [7, 5]}, deepfm),
    ("xdeepfm", {"layer_sizes": [7, 5], "cin_layer_sizes": [3, 2]}, xdeepfm),
    ("dcn_v2", {"layer_sizes": [7, 5], "low_rank": 2, "cross_layers": 2}, dcn_v2),
    ("dcn_v2", {"layer_sizes": [7, 5], "low_rank": 0, "structure": "stacked"}, dcn_v2),
    ("dlrm", {"bottom_layer_sizes": [7], "top_layer_sizes": [5]}, dlrm),
]


def inputs(dense_count: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([[1] * B, [1] * B, [0, 2, 3, 1, 0, 1]])
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    keys = ["user", "item", "history"]
    dense = torch.randn(B, dense_count, generator=generator)
    return dense, KeyedJaggedTensor(keys=keys, values=values, lengths=lengths.reshape(-1))


@pytest.mark.parametrize("dense_count", [3, 0])
@pytest.mark.parametrize(("name", "options", "plain"), CASES)
def test_a_model_computes_its_papers_formula(
    name: str, options: dict[str, object], plain: Callable[..., np.ndarray], dense_count: int
) -> None:
    spec = ModelSpec(architecture=name, embedding_dimension=D, options=options)
    schema = FeatureSchema(tuple(f"x{i}" for i in range(dense_count)), ("user", "item", "history"), D)
    torch.manual_seed(0)
    # item and history share a table: the collection orders features by table.
    collection = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name="u", embedding_dim=spec.row_dimension, num_embeddings=ROWS, feature_names=["user"]),
            EmbeddingBagConfig(
                name="i", embedding_dim=spec.row_dimension, num_embeddings=ROWS, feature_names=["item", "history"]
            ),
        ]
    )
    model = build_model(spec, collection, schema, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():  # zeros would hide a missing term
            parameter.add_(0.1 * torch.randn_like(parameter))
    dense, sparse = inputs(dense_count)
    logits = model(dense_features=dense, sparse_features=sparse)
    logits.sum().backward()

    params = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    rows = collection(sparse).values().detach().double().numpy().reshape(B, 3, spec.row_dimension)
    assert logits.shape == (B,)
    np.testing.assert_allclose(
        logits.detach().numpy(), plain(params, dense.double().numpy(), rows), rtol=1e-4, atol=1e-5
    )
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_dense_parameters_depend_only_on_the_seed(name: str) -> None:
    spec = ModelSpec(architecture=name, embedding_dimension=D)
    schema = FeatureSchema(("x0",), ("user",), D)

    def build(seed: int) -> list[torch.Tensor]:
        torch.rand(7)  # the process's own random state must not matter
        table = EmbeddingBagConfig(
            name="u", embedding_dim=spec.row_dimension, num_embeddings=ROWS, feature_names=["user"]
        )
        model = build_model(spec, EmbeddingBagCollection(tables=[table]), schema, seed=seed)
        return [value for key, value in model.named_parameters() if "embedding_bag" not in key]

    first, again, other = build(1), build(1), build(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_pairwise_products_are_those_of_torchrec() -> None:
    dense, rows = torch.randn(B, D), torch.randn(B, 5, D)
    assert torch.equal(PairwiseProducts(5)(dense, rows), InteractionArch(5)(dense, rows))


@pytest.mark.parametrize("architecture", ["wide_and_deep", "dcn_v2", "mmoe", "two_tower"])
def test_tables_of_different_dimensions_go_side_by_side(architecture: str) -> None:
    """As with one dimension, where the narrow table's missing numbers are zero and count for nothing."""
    names, wide, narrow = ("user", "item"), 5, 3
    extra = 1 if architecture == "wide_and_deep" else 0
    options: dict[str, object] = {
        "wide_and_deep": {},
        "dcn_v2": {"low_rank": 0, "structure": "parallel"},
        "mmoe": {},
        "two_tower": {"item_features": ["item"]},
    }[architecture]
    spec = ModelSpec(architecture=architecture, options=options)
    random = np.random.default_rng(2)
    sparse = KeyedJaggedTensor(
        keys=list(names),
        values=torch.from_numpy(random.integers(0, ROWS, 2 * B)),
        lengths=torch.ones(2 * B, dtype=torch.int32),
    )
    dense = torch.from_numpy(random.normal(size=(B, 1)).astype(np.float32))

    def built(item: int) -> torch.nn.Module:
        tables = [
            EmbeddingBagConfig(
                name=f"table_{name}", embedding_dim=size + extra, num_embeddings=ROWS, feature_names=[name]
            )
            for name, size in zip(names, (wide, item), strict=True)
        ]
        odd = {"item": item} if item != wide else {}
        schema = FeatureSchema(("x",), names, wide, dimensions=odd, tables=dict.fromkeys(odd, "item"))
        return build_model(spec, EmbeddingBagCollection(tables=tables), schema, seed=1)

    equal, unequal = built(wide), built(narrow)
    bags, narrow_bags = (model.embedding_bag_collection.embedding_bags for model in (equal, unequal))
    keep = narrow + extra
    # Which inputs of the layers behind are there, by the width of these with two equal tables.
    there = {2 * wide + 1: [*range(wide + narrow), 2 * wide], wide: list(range(narrow))}
    with torch.no_grad():
        bags["table_item"].weight[:, keep:] = 0
        narrow_bags["table_item"].weight.copy_(bags["table_item"].weight[:, :keep])
        narrow_bags["table_user"].weight.copy_(bags["table_user"].weight)
        for (name, full), part in zip(equal.named_parameters(), unequal.parameters(), strict=True):
            if "embedding_bag" in name:
                continue
            taken = full
            for axis, (size, smaller) in enumerate(zip(full.shape, part.shape, strict=True)):
                if size != smaller:
                    # Before the MLP's outputs where a layer has both.
                    inputs_before = max(each for each in there if each <= size)
                    kept = [*there[inputs_before], *range(inputs_before, size)]
                    taken = taken.index_select(axis, torch.tensor(kept))
            part.copy_(taken)
    expected = equal(dense_features=dense, sparse_features=sparse)
    found = unequal(dense_features=dense, sparse_features=sparse)
    torch.testing.assert_close(found, expected)
