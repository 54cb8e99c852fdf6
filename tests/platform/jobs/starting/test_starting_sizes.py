"""Start-up sizes from the job file, or from similar jobs in a real MLflow database."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.history import History
from elastrec.platform.history.points import CostMeter
from elastrec.platform.history.records import Sizes
from elastrec.platform.history.report import Story
from elastrec.platform.jobs import warm_start
from elastrec.platform.jobs.scaling.story import fitted
from elastrec.platform.jobs.starting import launching
from elastrec.platform.jobs.starting.starting_sizes import allocation_again, past_job
from elastrec.platform.jobs.types import Allocation, Interval, Prepared
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.loading import job_to_json, load_job
from tests.platform.jobs.scaling.test_profiles import measured_profile

INTERVAL = Interval("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")


def prepared(folder: Path, job_id: str, rows: int = 1000, servers: int = 1, **scaling: Any) -> Prepared:
    manifest = folder / "manifest.json"
    manifest.write_text("{}")
    job = load_job(
        {
            "apiVersion": "elastrec.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "clicks", "team": "ads"},
            "spec": {
                "model": {"architecture": "dlrm", "embedding_dimension": 8},
                "data": {"path": "clicks", "sparse": [{"name": "user"}], "dense": [{"name": "age"}]},
                "resources": {"parameter_server": {"count": servers}},
                "scaling": scaling,
            },
        }
    )
    return Prepared(
        job_id=job_id, job_json=job_to_json(job), interval=INTERVAL, training_manifest=str(manifest),
        evaluation_manifest=str(manifest), training_rows=rows, evaluation_rows=10,
    )  # fmt: skip


@pytest.fixture
def platform(tmp_path: Path) -> Any:
    size = PodSize(cores=16.0, memory_bytes=2**36)
    launcher = SimpleNamespace(nodes=lambda: [Node(name="node", size=size, free=size)])
    return SimpleNamespace(launcher=launcher, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", ui_url="")


def finish(
    platform: Any, job: Prepared, started_with: Allocation, used_bytes: tuple[int, ...] = (), **last: Any
) -> None:
    """A job that ended with other sizes than it had at its start, if `last` names any."""
    sizes = msgspec.structs.replace(Sizes.granted(started_with), **last)
    history = History(platform.tracking_uri, "elastrec")
    run_id = history.start_run(job, started_with)
    pods = [
        PodStatus(
            name=pod_name(job.job_id, Role.PARAMETER_SERVER, server), uid=f"{server}", job=job.job_id,
            role=Role.PARAMETER_SERVER, phase=PodPhase.RUNNING, size=PodSize(cores=1.0, memory_bytes=2**34),
            memory_bytes=used,
        )
        for server, used in enumerate(used_bytes)
    ]  # fmt: skip
    history.log_series(run_id, CostMeter().usage_points(pods, 1000, 1_800_000_000.0))
    story = Story(
        text="", wall_seconds=1.0, goodput=1.0, parts=[], timeline=[], sizes=sizes, shape_changes=int(bool(last))
    )
    history.finish_run(run_id, Phase.SUCCEEDED, "", story=story)


def test_without_warm_start_a_job_starts_with_the_sizes_of_its_file(platform: Any, tmp_path: Path) -> None:
    found = warm_start(platform, prepared(tmp_path, "clicks-1"))
    assert (found.workers, found.parameter_servers) == (1, 1)
    assert "job_file" in found.source


def test_without_a_similar_job_the_sizes_of_the_file_are_used_and_reported(platform: Any, tmp_path: Path) -> None:
    found = warm_start(platform, prepared(tmp_path, "clicks-1", start="history"))
    assert found.workers == 1 and "cold start" in found.source


def test_the_sizes_that_similar_jobs_ended_with_are_taken_within_the_jobs_bounds(platform: Any, tmp_path: Path) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    finish(platform, first, warm_start(platform, first), workers=4)
    found = warm_start(platform, prepared(tmp_path, "clicks-2", rows=1100, start="history"))
    assert found.workers == 4
    assert "clicks-1" in found.source and "share 100%" in found.source
    bounded = warm_start(platform, prepared(tmp_path, "clicks-3", start="history", maximum_workers=3))
    assert bounded.workers == 3
    assert msgspec.structs.replace(bounded, workers=4, source="") == msgspec.structs.replace(found, source="")


def test_a_size_that_the_caller_names_is_not_chosen_by_history(platform: Any, tmp_path: Path) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    finish(platform, first, warm_start(platform, first), workers=4, parameter_servers=2)
    job = prepared(tmp_path, "clicks-2", start="history", servers=3)
    found = warm_start(platform, job, {"spec.resources.parameter_server.count", "spec.training.epochs"})
    assert (found.workers, found.parameter_servers) == (4, 3)
    assert found.source == f"{warm_start(platform, job).source}; named by the caller: parameter_servers"


def test_a_job_that_is_launched_again_starts_as_before_except_for_what_the_caller_names(
    platform: Any, tmp_path: Path
) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    finish(platform, first, warm_start(platform, first), workers=4)
    job = prepared(tmp_path, "clicks-2", start="history", servers=2)
    before = warm_start(platform, job)
    # Meanwhile, another similar job has ended with other sizes.
    finish(platform, prepared(tmp_path, "clicks-3", start="history"), before, workers=9)
    assert warm_start(platform, job).workers != 4
    assert allocation_again(before, job, {"spec.data.path"}) == before
    named = allocation_again(before, job, {"spec.resources.parameter_server.count", "spec.resources.worker.cores"})
    assert named is not None and (named.workers, named.parameter_servers, named.worker_cores) == (4, 2, 1.0)
    assert named.source == f"{before.source}; named by the caller: worker_cores, parameter_servers"
    assert allocation_again(named, job, ()) == msgspec.structs.replace(named, source=before.source)
    limited = prepared(tmp_path, "clicks-2", start="history", maximum_workers=3)
    bounded = allocation_again(before, limited, {"spec.scaling.maximum_workers"})
    assert bounded == msgspec.structs.replace(before, workers=3)
    # How sizes are chosen is named: they are chosen anew.
    assert allocation_again(before, job, {"spec.scaling.start"}) is None


def test_servers_start_with_the_memory_of_similar_jobs_and_a_margin(platform: Any, tmp_path: Path) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    asked = warm_start(platform, first)
    started = msgspec.structs.replace(asked, parameter_servers=2, parameter_server_memory_bytes=16 * 2**30)
    finish(platform, first, started, used_bytes=(2 * 2**30, 3 * 2**30))
    found = warm_start(platform, prepared(tmp_path, "clicks-2", start="history"))
    # A fifth stays free, in steps of 128 MiB.
    assert found.parameter_server_memory_bytes == 30 * 128 * 2**20
    assert found.parameter_servers == 2


def test_a_job_starts_with_the_servers_and_the_memory_that_a_similar_one_grew_to(platform: Any, tmp_path: Path) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    asked = warm_start(platform, first)
    started = msgspec.structs.replace(asked, parameter_servers=1, parameter_server_memory_bytes=2**30)
    grown = {"parameter_servers": 2, "parameter_server_memory_bytes": 2**32}
    finish(platform, first, started, used_bytes=(3 * 2**30, 3 * 2**30), **grown)
    found = warm_start(platform, prepared(tmp_path, "clicks-2", start="history"))
    assert (found.parameter_servers, found.parameter_server_memory_bytes) == (2, 30 * 128 * 2**20)


@pytest.mark.parametrize(("limits", "expected"), [
    ({"maximum_parameter_servers": 4}, 4), ({"minimum_parameter_servers": 12, "servers": 12}, 12), ({}, 8),
])  # fmt: skip
def test_on_fewer_servers_than_a_similar_job_had_each_gets_more_memory(
    platform: Any, tmp_path: Path, limits: dict[str, Any], expected: int
) -> None:
    first = prepared(tmp_path, "clicks-1", start="history")
    finish(
        platform, first, warm_start(platform, first), used_bytes=(2**30,) * 8, parameter_servers=8,
        parameter_server_memory_bytes=2**31,
    )  # fmt: skip
    found = warm_start(platform, prepared(tmp_path, "clicks-2", start="history", **limits))
    assert found.parameter_servers == expected
    # 1 GiB of each of eight servers was used, and a fifth stays free.
    assert found.parameter_servers * found.parameter_server_memory_bytes >= 8 * 2**30 / 0.8


def test_a_job_that_ends_leaves_its_model_to_those_that_come(platform: Any, tmp_path: Path) -> None:
    job = prepared(tmp_path, "clicks-1")
    history = History(platform.tracking_uri, "elastrec")
    run_id = history.start_run(job, warm_start(platform, job))
    launching._close_run(platform, run_id, Phase.SUCCEEDED, "", None, measured_profile())
    (record,) = history.job_records()
    left = past_job(record).coefficients
    expected = fitted(measured_profile())
    assert expected is not None and left == expected.coefficients and record.phase is Phase.SUCCEEDED
    assert record.metrics[names.SCALING_DENSE_BYTES] == measured_profile().dense_bytes
