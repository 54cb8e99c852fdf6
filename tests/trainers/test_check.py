"""The model and the transform of a job are checked before any pod starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.job import BUILT_IN_MODELS
from elastrec.platform.specs.text.loading import job_to_json, load_job
from elastrec.trainers.check import check
from elastrec.trainers.models import FeatureSchema


def job(architecture: str = "dlrm", options: dict[str, Any] | None = None, **data: Any) -> Any:
    columns = {"path": "clicks", "dense": [{"name": "I1"}], "sparse": [{"name": "C1"}, {"name": "C2"}], **data}
    return load_job(
        {
            "metadata": {"name": "click"},
            "spec": {
                "model": {"architecture": architecture, "embedding_dimension": 4, "options": options or {}},
                "data": columns,
            },
        }
    )


@pytest.mark.parametrize("architecture", BUILT_IN_MODELS)
def test_every_built_in_model_passes(architecture: str) -> None:
    options = {
        "din": {"attention": {"L1": "C2"}},
        "bst": {"sequences": ["L1"]},
        "two_tower": {"item_features": ["C2"]},
    }.get(architecture)
    sparse = [{"name": "C1"}, {"name": "C2"}, {"name": "L1", "is_list": True, "table": "C2"}]
    assert check(job(architecture, options, sparse=sparse)) == []
    assert check(job(architecture, options, sparse=sparse, dense=[])) == []


@pytest.mark.parametrize("architecture", ["dlrm", "wide_and_deep"])
def test_a_model_whose_lists_are_pooled_by_attention_passes(architecture: str) -> None:
    lists = {"name": "L1", "is_list": True, "pooling": "attention"}
    assert check(job(architecture, sparse=[{"name": "C1"}, lists])) == []


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("nowhere.at_all:Model", "nowhere"),
        ("elastrec.trainers.models.dlrm:Nothing", "no such name"),
        ("json:dumps", "function"),
        ("torch.nn:Linear", "forward"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(architecture: str, words: str) -> None:
    problems = check(job(architecture))
    assert problems
    assert words in str(problems[0])


class Scaled(nn.Module):
    """A model with a constant and with a cache, neither of which has to be kept."""

    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__()
        self.rows = embedding_bag_collection
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        self.seen += 1
        return self.rows(sparse_features).values().sum(dim=1) * self.scale


class Normalised(Scaled):
    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__(embedding_bag_collection, schema)
        self.normal = nn.BatchNorm1d(8)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        return self.normal(self.rows(sparse_features).values()).sum(dim=1) * self.scale


def test_running_statistics_are_refused_and_constants_and_caches_are_not() -> None:
    assert check(job(f"{__name__}:Scaled")) == []
    (problem,) = check(job(f"{__name__}:Normalised"))
    assert problem.path == "spec.model.architecture"
    assert "not normal.running_mean, normal.running_var, normal.num_batches_tracked;" in problem.allowed


class Unpooled(nn.Module):
    """Takes the sum of the numbers of a list's rows, and one layer over the pooled rows of the others."""

    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__()
        self.rows = embedding_bag_collection
        self.layer = nn.Linear(2 * schema.embedding_dimension, 1)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        rows = self.rows.rows(sparse_features, "L1")
        return self.layer(self.rows(sparse_features).values()).squeeze(1) + rows.sum()


def test_a_model_of_ones_own_may_take_rows_that_are_not_pooled() -> None:
    lists = [{"name": "C1"}, {"name": "C2"}, {"name": "L1", "is_list": True}]
    model = {"architecture": f"{__name__}:Unpooled", "embedding_dimension": 4, "unpooled_features": ["L1"]}
    spec = {"model": model, "data": {"path": "clicks", "dense": [{"name": "I1"}], "sparse": lists}}
    assert check(load_job({"metadata": {"name": "click"}, "spec": spec})) == []


@pytest.mark.parametrize("architecture", ["din", "bst"])
def test_a_model_that_pools_a_list_passes_with_attention_for_another_one(architecture: str) -> None:
    options = {"din": {"attention": {"L1": "C2"}}, "bst": {"sequences": ["L1"]}}[architecture]
    lists = [{"name": "L1", "is_list": True, "table": "C2"}, {"name": "L2", "is_list": True, "pooling": "attention"}]
    assert check(job(architecture, options, sparse=[{"name": "C1"}, {"name": "C2"}, *lists])) == []


def test_features_may_be_called_like_methods_of_a_dictionary() -> None:
    assert check(job(sparse=[{"name": "items"}, {"name": "keys"}])) == []


def test_an_unknown_option_is_refused_with_those_that_exist() -> None:
    problems = check(job("dlrm", {"layers": [3]}))
    assert problems[0].path == "spec.model.options.layers"


def test_a_transform_that_cannot_be_imported_is_refused() -> None:
    problems = check(job(transform="nowhere:transform"))
    assert problems[0].path == "spec.data.transform"


# The process ends by `os._exit`, where nothing else of it runs any more.
_CHECK = """
import gc, os, runpy, sys
end = os._exit
def report(exit_code):
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr, flush=True)
    end(exit_code)
os._exit = report
runpy.run_module("elastrec.trainers.check", run_name="__main__")
"""


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    """The check of an unusable model as a process, which prints the state of the garbage collector at its end."""
    command = [sys.executable, "-c", _CHECK]
    return subprocess.run(command, input=job_to_json(job("json:dumps")), capture_output=True, text=True, check=False)


def test_the_process_loads_torch_without_the_collector(checked: subprocess.CompletedProcess[str]) -> None:
    assert checked.stderr.splitlines()[-1] == "True True"


def test_the_process_prints_the_problems_as_json(checked: subprocess.CompletedProcess[str]) -> None:
    assert checked.returncode == 1
    assert msgspec.json.decode(checked.stdout.splitlines()[-1])[0]["path"] == "spec.model.architecture"
