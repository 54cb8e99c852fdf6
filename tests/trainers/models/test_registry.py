"""Models by name: refusals and their messages."""

from __future__ import annotations

import sys
import types

import pytest
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import ModelSpec
from elastrec.trainers.models import FeatureSchema, build_model, model_class
from elastrec.trainers.models.registry import _BUILT_IN

SCHEMA = FeatureSchema(("x",), ("user",), 4)


class Good(nn.Module):
    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema, *, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(1, width)

    def forward(self, dense_features: object, sparse_features: object) -> object: ...


class WrongForward(Good):
    def forward(self, batch: object) -> object: ...  # type: ignore[override]


class WrongConstructor(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, dense_features: object, sparse_features: object) -> object: ...


class Wider(Good):
    @staticmethod
    def row_dimension(embedding_dimension: int) -> int:
        return embedding_dimension + 2


class OfAnyDimensions(Good):
    takes_table_dimensions = True

    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__(embedding_bag_collection, schema, width=len(schema.dense_names) + schema.width())


@pytest.fixture(autouse=True)
def users_package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_package")
    for entry in (Good, WrongForward, WrongConstructor, Wider, OfAnyDimensions):
        setattr(module, entry.__name__, entry)
    module.helper = len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_package", module)


def test_a_class_that_drops_its_embedding_collection_cannot_have_attention_trained_with_it() -> None:
    table = EmbeddingBagConfig(name="seen", embedding_dim=4, num_embeddings=1, feature_names=["seen"])
    schema = FeatureSchema(("x",), ("seen",), 4, {"seen": 9}, attention=("seen",))
    with pytest.raises(SpecError, match=r"keeps its embedding_bag_collection as an attribute.*\n?.*seen ask"):
        build_model(
            ModelSpec(architecture="users_package:Good"), EmbeddingBagCollection(tables=[table]), schema, seed=0
        )


def test_a_users_class_is_built_by_its_import_path() -> None:
    spec = ModelSpec(architecture="users_package:Good", options={"width": 9})
    model = build_model(spec, nn.Identity(), SCHEMA, seed=0)
    assert model.layer.out_features == 9


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("absent_package.models:Model", "importing absent_package.models failed"),
        ("users_package:Absent", "no such name"),
        ("users_package:helper", "a builtin_function_or_method"),
        ("users_package:WrongForward", "forward(self, dense_features, sparse_features)"),
        ("users_package:WrongConstructor", "Class(embedding_bag_collection, schema, **options)"),
    ],
)
def test_a_wrong_import_path_is_refused_by_name(path: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_class(path)
    assert said in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("name", sorted(_BUILT_IN))
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(SpecError, match=r"options.layer_size: .*_sizes"):
        build_model(ModelSpec(architecture=name, options={"layer_size": [1]}), nn.Identity(), SCHEMA, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wide_and_deep", {"layer_sizes": []}),
        ("deepfm", {"layer_sizes": "256"}),
        ("xdeepfm", {"cin_layer_sizes": [0]}),
        ("dcn_v2", {"cross_layers": 0}),
        ("dcn_v2", {"structure": "sideways"}),
        ("dlrm", {"top_layer_sizes": [True]}),
    ],
)
def test_an_option_of_a_wrong_value_is_refused_by_name(name: str, options: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=f"spec.model.options.{next(iter(options))}"):
        build_model(ModelSpec(architecture=name, options=options), nn.Identity(), SCHEMA, seed=0)


def test_the_job_files_row_dimension_is_that_of_the_class() -> None:
    for name in _BUILT_IN:
        assert model_class(name).row_dimension(16) == ModelSpec(architecture=name).row_dimension  # type: ignore[attr-defined]


def test_rows_of_a_users_model_have_the_dimension_of_the_job_file() -> None:
    with pytest.raises(SpecError, match="set embedding_dimension to 18"):
        build_model(ModelSpec(architecture="users_package:Wider"), nn.Identity(), SCHEMA, seed=0)


UNEQUAL = FeatureSchema(("x",), ("user", "item"), 4, dimensions={"item": 8}, tables={"item": "goods"})


@pytest.mark.parametrize("architecture", ["deepfm", "xdeepfm", "dlrm", "users_package:Good"])
def test_a_model_that_needs_one_dimension_refuses_a_table_with_another(architecture: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_model(ModelSpec(architecture=architecture), nn.Identity(), UNEQUAL, seed=0)
    said = str(caught.value)
    assert "spec.tables.goods.dimension: 8 is not allowed; allowed: 4, as spec.model.embedding_dimension says" in said
    assert architecture in said and "remove the field" in said
    assert ("takes_table_dimensions = True" in said) == (":" in architecture)


@pytest.mark.parametrize("architecture", ["wide_and_deep", "dcn_v2", "mmoe", "users_package:OfAnyDimensions"])
def test_a_model_that_takes_any_dimensions_is_built_with_them(architecture: str) -> None:
    model = build_model(ModelSpec(architecture=architecture), nn.Identity(), UNEQUAL, seed=0)
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    assert 1 + 4 + 8 in sizes and 1 + 4 + 4 not in sizes
