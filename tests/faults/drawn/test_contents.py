"""The digest of a record depends on the whole state of the job, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import commit_record
from elastrec.trainers.parameter_server.records.share import save_part
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.faults.live.contents import Contents, contents_of, setbacks
from tests.trainers.parameter_server.migration.moving import JOB, Cluster, Worker, cluster

SHAPES = (3, 1, 2)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def save(servers: Cluster, uri: Path) -> Contents:
    parts = [save_part(servers.servers[name], str(uri), cut=uri.name) for name in servers.routing.servers]
    commit_record(
        str(uri), parts, b"{}", job=JOB, job_id="job-1", kind="periodic", step=1, generation=1, cut=uri.name,
        created_unix_seconds=1000.0,
    )  # fmt: skip
    return contents_of(str(uri))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Contents, Contents]]:
    """What 4 servers hold before and after they become 3, 1 and 2; between the changes a worker trains."""
    folder, found = tmp_path_factory.mktemp("records"), []
    with cluster(4, 4) as servers:
        worker = Worker(servers.routing)
        for number, count in enumerate(SHAPES):
            worker.step()
            before = save(servers, folder / f"{number}-before")
            servers.move(count)
            found.append((before, save(servers, folder / f"{number}-after")))
        worker.client.close()
    return found


def test_digests_are_equal_whichever_servers_hold_the_buckets(learnt: list[tuple[Contents, Contents]]) -> None:
    for before, after in learnt:
        assert before.digests() == after.digests() and not before.doubled and not after.doubled
        assert len(before.rows) > 500 and len(before.marks) == 128 and before.dense["scale"]["steps"] > 0
        assert setbacks(before, after) == []


def test_a_step_changes_values_state_versions_dense_parameters_and_marks(
    learnt: list[tuple[Contents, Contents]],
) -> None:
    (_, before), (after, _), _ = learnt
    old, new = before.digests(), after.digests()
    for name in ("rows: values", "rows: state", "rows: versions", "dense: value", "dense: steps", "marks"):
        assert old[name] != new[name], name
    assert setbacks(before, after) == []
    assert len(setbacks(after, before)) > 300


def _row(contents: Contents) -> dict[str, np.ndarray]:
    return contents.rows[min(contents.rows)]


def lose_row(contents: Contents) -> None:
    del contents.rows[min(contents.rows)]


def change_values(contents: Contents) -> None:
    _row(contents)["values"] = _row(contents)["values"] + 1


def change_state(contents: Contents) -> None:
    _row(contents)["state"] = _row(contents)["state"] - 1e-3


def lose_gradients(contents: Contents) -> None:
    change_state(contents)
    _row(contents)["versions"] = _row(contents)["versions"] + 1


def lose_version(contents: Contents) -> None:
    newest = max(contents.rows.values(), key=lambda columns: int(columns["versions"]))
    newest["versions"] = newest["versions"] - 1


def lose_dense_step(contents: Contents) -> None:
    contents.dense["scale"]["steps"] = contents.dense["scale"]["steps"] - 1


def forget_pushes(contents: Contents) -> None:
    contents.marks["virtual", 7] = []


@pytest.mark.parametrize(
    ("harm", "digest", "words"),
    [
        (lose_row, "keys", "1 rows are gone"),
        (change_values, "rows: values", "another values under the same version"),
        (change_state, "rows: state", "another state under the same version"),
        (lose_gradients, "rows: state", "has lost gradients"),
        (lose_version, "rows: versions", "went from version"),
        (lose_dense_step, "dense: steps", "has lost steps"),
        (forget_pushes, "marks", "virtual bucket 7 has forgotten pushes"),
    ],
)
def test_whatever_is_lost_shows(tmp_path: Path, harm: Callable[[Contents], None], digest: str, words: str) -> None:
    with cluster(2, 2) as servers:
        worker = Worker(servers.routing)
        worker.step()
        save(servers, tmp_path / "earlier")
        worker.step()  # of the next version
        before, after = save(servers, tmp_path / "before"), save(servers, tmp_path / "after")
        worker.client.close()
    assert before.digests() == after.digests()
    harm(after)
    assert before.digests()[digest] != after.digests()[digest]
    (problem,) = setbacks(before, after)
    assert words in problem
