"""Servers initialise again what the launch of a changed job has announced as such, although its shape is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import Verdict, compare, open_record
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.messages import InitDense, Parameter, Stamp
from elastrec.trainers.parameter_server.records.share import restore
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.trainers.parameter_server.filled import contents, push, save, servers_of
from tests.trainers.parameter_server.running import job_document, routing_of, training_job

LAYOUT = [Parameter("over.weight", (3, 5))]
DATA: dict[str, Any] = job_document()["data"] | {"dense": [{"name": "n"}, {"name": "m"}]}
VOCABULARY = {"step": "vocabulary", "values": [3, 5, 7]}


def trained(folder: Path, **parts: Any) -> str:
    """A record with rows of both tables and dense parameters of ones."""
    job = job_of(**parts)
    servers = servers_of(job, 1)
    push(servers, range(50), 1.0)
    init_dense(servers[0], 1.0)
    return save(servers, job, str(folder / "record"))


def job_of(**parts: Any) -> TrainingJob:
    return training_job(**{"data": DATA, "resources": {"virtual_buckets": 64}} | parts)


def init_dense(server: ParameterServer, value: float) -> None:
    assert server.model is not None
    server.model.init_dense(InitDense(stamp=Stamp("w", "i", 1, 1), layout=LAYOUT), [np.full(15, value, np.float32)])


def continued(uri: str, job: TrainingJob) -> ParameterServer:
    """A server of a job that starts from the record, after its first worker has sent zeros."""
    (server,) = servers_of(job, 1)
    restore(server, uri, routing_of(["nowhere"], buckets=64), 1)
    init_dense(server, 0.0)
    return server


def tables_of(server: ParameterServer) -> set[str]:
    return {table for _, table, _ in contents([server])}


def test_rows_of_a_feature_with_other_steps_are_initialised_again_and_others_are_kept(tmp_path: Path) -> None:
    uri = trained(tmp_path)
    job = job_of(data=DATA | {"features": {"user": [VOCABULARY]}})
    adaptation = compare(open_record(uri).manifest.model, job)
    assert (adaptation.table("user"), adaptation.table("item")) == (Verdict.NEW, Verdict.KEPT)
    assert tables_of(continued(uri, job)) == {"item"}


@pytest.mark.parametrize(
    "changed",
    [
        {"data": DATA | {"dense": [{"name": "m"}, {"name": "n"}]}},
        {"data": DATA | {"sparse": [{"name": "item"}, {"name": "user"}]}},
        {"data": DATA | {"features": {"n": [{"step": "log1p"}]}}},
        {"model": job_document()["model"] | {"architecture": "dcn_v2"}},
    ],
    ids=["dense features swapped", "sparse features swapped", "steps of a dense feature", "architecture"],
)
def test_dense_parameters_of_another_meaning_are_initialised_again(tmp_path: Path, changed: dict[str, Any]) -> None:
    uri, job = trained(tmp_path), job_of(**changed)
    assert compare(open_record(uri).manifest.model, job).dense("over.weight") is Verdict.NEW
    server = continued(uri, job)
    assert server.dense is not None and not server.dense.values.any()
    assert tables_of(server) == {"user", "item"}


def test_the_dense_parameters_of_an_unchanged_job_are_kept(tmp_path: Path) -> None:
    server = continued(trained(tmp_path), job_of())
    assert server.dense is not None and (server.dense.values == 1.0).all()
