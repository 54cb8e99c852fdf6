"""Models and transforms of the user that cannot be used, and jobs that do not fit on the cluster."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.bad_input.case import Arguments, Case, Place, run, with_field, with_files

MODEL = "The model"
TRANSFORM = "The transform"
CLUSTER = "The cluster's size"
_number = count()

HEAD = """
import torch
from torch import nn

class MyModel(nn.Module):
    def __init__(self, embedding_bag_collection, schema, hidden=4):
        super().__init__()
        self.rows = embedding_bag_collection
        self.layer = nn.Linear(schema.dense_count if hasattr(schema, "dense_count") else 1, 1)
"""


def module(place: Place, text: str) -> str:
    """A module of its own name: imports are remembered by name."""
    name = f"user_code_{next(_number)}"
    (place.folder / f"{name}.py").write_text(text)
    return name


def model(text: str, **options: Any) -> Arguments:
    """`elastrec run` on a job whose model is `MyModel` of a module with this text."""

    def prepare(place: Place) -> list[str]:
        place.set("spec.model.architecture", f"{module(place, text)}:MyModel")
        place.set("spec.model.options", options)
        return run(place)

    return prepare


def forward(body: str) -> Arguments:
    return model(f"{HEAD}\n    def forward(self, dense_features, sparse_features):\n        {body}\n")


def transform(text: str) -> Arguments:
    """`elastrec run` on a job whose transform is `change` of a module with this text."""

    def prepare(place: Place) -> list[str]:
        place.set("spec.data.transform", f"{module(place, text)}:change")
        return run(place)

    return prepare


def _unequal(place: Place) -> list[str]:
    place.set("spec.model.architecture", "dlrm")
    place.set("spec.tables", {"C1": {"dimension": 8}})
    return run(place)


def _crowd(place: Place) -> None:
    place.set("spec.resources.parameter_server", {"count": 40, "cores": 0.25, "memory": "512Mi"})
    place.set("spec.scaling.maximum_parameter_servers", 40)


CASES = [
    Case(MODEL, "an unknown name", with_field("spec.model.architecture", "dlmr"),
         ("spec.model.architecture", "'dlmr'", "dlrm", "my_package.models:MyModel")),
    Case(MODEL, "a package that is not installed", with_field("spec.model.architecture", "not_installed.models:M"),
         ("spec.model.architecture", "not_installed", "imported by the pods", "PYTHONPATH")),
    Case(MODEL, "a module that fails when it is imported", model("import json\njson.loads('{')\n"),
         ("spec.model.architecture", "importing", "JSONDecodeError")),
    Case(MODEL, "a module that ends the process", model("import sys\nsys.exit(3)\n"),
         ("spec.model.architecture", "importing", "SystemExit: 3")),
    Case(MODEL, "a module with an error of syntax", model("class MyModel(:\n"),
         ("spec.model.architecture", "importing", "SyntaxError")),
    Case(MODEL, "a module without the class", model("x = 1\n"),
         ("spec.model.architecture", "torch.nn.Module class", "no such name")),
    Case(MODEL, "a function in the class's place", model("def MyModel(a, b):\n    return a\n"),
         ("spec.model.architecture", "torch.nn.Module class", "a function")),
    Case(MODEL, "a constructor with other arguments",
         model("from torch import nn\nclass MyModel(nn.Module):\n    def __init__(self): super().__init__()\n"),
         ("spec.model.architecture", "Class(embedding_bag_collection, schema, **options)", "too many")),
    Case(MODEL, "a forward with other arguments", model(f"{HEAD}\n    def forward(self, x):\n        return x\n"),
         ("spec.model.architecture", "forward(self, dense_features, sparse_features)", "dense_features")),
    Case(MODEL, "a forward that fails", forward("return dense_features @ torch.zeros(77, 1)"),
         ("spec.model", "forward works on the job's features", "RuntimeError")),
    Case(MODEL, "one logit for all samples", forward("return self.layer.weight.sum()"),
         ("spec.model.architecture", "one logit per sample", "shape (4,)")),
    Case(MODEL, "two results", forward("return self.layer.weight, self.layer.bias"),
         ("spec.model.architecture", "one logit per sample", "tuple")),
    Case(MODEL, "logits that depend on no parameter", forward("return dense_features.sum(dim=1)"),
         ("spec.model.architecture", "depend on its parameters")),
    Case(MODEL, "logits that are no numbers", forward("return self.layer.bias.expand(4) * float('nan')"),
         ("spec.model.architecture", "finite", "nan")),
    Case(MODEL, "logits that depend on no embedding", forward("return self.layer(dense_features).squeeze(1)"),
         ("spec.model.architecture", "depends on its embedding_bag_collection")),
    Case(MODEL, "parameters of another type",
         model(f"{HEAD}        self.layer.double()\n"
               "    def forward(self, dense_features, sparse_features):\n"
               "        return self.layer(dense_features.double()).squeeze(1)\n"),
         ("layer.weight", "torch.float64", "torch.float32", "layer.bias")),
    Case(MODEL, "a layer with running statistics",
         model(f"{HEAD}        self.normal = nn.BatchNorm1d(1)\n"
               "    def forward(self, dense_features, sparse_features):\n"
               "        return self.layer(self.normal(dense_features)).squeeze(1)\n"),
         ("spec.model.architecture", "normal.running_var", "LayerNorm")),
    Case(MODEL, "a table with a dimension of its own in a model that multiplies embeddings", _unequal,
         ("spec.tables.C1.dimension", "8", "4, as spec.model.embedding_dimension says", "dlrm", "remove the field")),
    Case(MODEL, "an unknown option", with_field("spec.model.options", {"layers": [8]}),
         ("spec.model.options.layers", "[8]")),
    Case(MODEL, "an option that is missing",
         model("from torch import nn\nclass MyModel(nn.Module):\n    def __init__(self, rows, schema, hidden):\n"
               "        super().__init__()\n    def forward(self, dense_features, sparse_features): ...\n"),
         ("spec.model.options.hidden", "missing", "needs this option")),
    Case(TRANSFORM, "a path that is none", with_field("spec.data.transform", "my_package.change"),
         ("spec.data.transform", "'my_package.change'", "an import path such as")),
    Case(TRANSFORM, "a package that is not installed", with_field("spec.data.transform", "not_installed:change"),
         ("data.transform", "not_installed", "PYTHONPATH")),
    Case(TRANSFORM, "no function", transform("change = 3\n"), ("data.transform", "int", "a function")),
    Case(TRANSFORM, "a function that fails", transform("def change(rows):\n    return rows['nothing']\n"),
         ("data.transform", "KeyError", "nothing")),
    Case(TRANSFORM, "a function that loses rows", transform("def change(rows):\n    return rows.slice(1)\n"),
         ("data.transform", "7 rows of 8", "must stay")),
    Case(TRANSFORM, "a function that returns something else",
         transform("def change(rows):\n    return rows.to_pydict()\n"), ("data.transform", "dict", "RecordBatch")),
    Case(TRANSFORM, "a function that loses a column",
         transform("def change(rows):\n    return rows.drop_columns(['C1'])\n"), ("data.transform", "'C1'")),
    Case(CLUSTER, "more cores than the cluster has", with_field("spec.resources.worker.cores", 64),
         ("spec.resources.worker.cores", "64", "at most 4")),
    Case(CLUSTER, "more memory than the cluster has", with_field("spec.resources.evaluator.memory", "1Ti"),
         ("spec.resources.evaluator.memory", "1Ti", "at most 8Gi")),
    Case(CLUSTER, "more servers than the cluster can hold", with_files(_crowd),
         ("spec.resources", "cores", "at most 4", "fewer")),
    Case(CLUSTER, "more memory in all than the cluster has",
         with_field("spec.resources.parameter_server", {"count": 8, "cores": 0.1, "memory": "1Gi"}),
         ("spec.resources", "memory", "at most 8Gi", "fewer")),
]  # fmt: skip
