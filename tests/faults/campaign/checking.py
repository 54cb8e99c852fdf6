"""Checks of the model and the accounts after a run. Each violation is a sentence in the problems of the outcome."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.checkpoints import RecordManifest, list_records, list_terms, predictions_folder
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.data.reading.ids import encode_ids
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.master.reporting.explanation import read_explanation
from elastrec.platform.master.reporting.ledger import read_ledger
from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.shape import DONE
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.export import ExportRequest
from tests.faults.campaign.accounts import Size, check_ledger, check_restores, journals, rows_reported
from tests.faults.campaign.job import EPOCHS, ROWS, SHARD_BATCHES, SHARD_ROWS, SHARDS
from tests.faults.campaign.keeping import Keeper
from tests.faults.campaign.leftovers import torn_records
from tests.faults.campaign.outcome import Outcome
from tests.faults.campaign.plan import Run
from tests.faults.campaign.site import Site
from tests.faults.live.contents import contents_of, setbacks

AUC_TOLERANCE = 0.003
DROPPED_BATCHES = 4
"""A worker that loses a connection drops what it pulled, what it computes, and a push without an answer."""
HELD_BATCHES = 3 * SHARD_BATCHES
"""A worker that is lost may have trained all of its shards without having reported it: it reads ahead into two more."""
SIZE = Size(rows=ROWS, shard_rows=SHARD_ROWS, epochs=EPOCHS, seed=1)


def check_model(
    site: Site,
    prepared: Prepared,
    job_name: str,
    metrics: TrainingMetrics,
    expected_auc: float | None,
    outcome: Outcome,
) -> None:
    """Exports the final record as the evaluator does, loads it, and scores with it."""
    from elastrec.trainers.export.process import export

    if not metrics.shards_done == metrics.shards_total == SHARDS:
        outcome.problems.append(f"{metrics.shards_done} of {metrics.shards_total} shards are done, not {SHARDS}")
    request = ExportRequest(
        job_json=prepared.job_json,
        job_id=prepared.job_id,
        store_uri=str(site.store),
        record_uri=metrics.checkpoint or "",
        predictions_uri=predictions_folder(str(site.store), job_name, prepared.job_id),
        evaluation_manifest_uri=prepared.evaluation_manifest,
    )
    with tempfile.TemporaryDirectory(dir=site.home) as work:
        exported = export(request, Path(work))
    if exported.challenger is None or exported.challenger.auc is None or not exported.checked_rows:
        outcome.problems.append("the exported model could not be checked")
        return
    outcome.auc = exported.challenger.auc
    if metrics.auc is None or abs(metrics.auc - outcome.auc) > 1e-3:
        outcome.problems.append(f"the job said AUC {metrics.auc}, its exported model has {outcome.auc:.5f}")
    if expected_auc is not None and abs(outcome.auc - expected_auc) >= AUC_TOLERANCE:
        outcome.problems.append(f"AUC {outcome.auc:.5f}, undisturbed {expected_auc:.5f}")


def check_accounts(site: Site, run: Run, prepared: Prepared, job_name: str, kept: Keeper, outcome: Outcome) -> None:
    """Checks the ledger, the records and the logs of a job that has been removed.

    Args:
        kept: the logs of all pods of the run.
    """
    ledger, story = (read(str(site.store), prepared.job_id) for read in (read_ledger, read_explanation))
    if ledger is None or story is None:
        outcome.problems.append("the job left no ledger or no explanation")
        return
    attempts = ledger.to_pylist()
    begun = journals(list_terms(str(site.store), job_name, prepared.job_id))
    accounts = check_ledger(attempts, story, SIZE, begun=begun)
    if story.migrations:
        # A server that comes later, as after a notice, has not counted from the beginning.
        outcome.in_flight = None
    if outcome.in_flight is not None:
        outcome.in_flight -= rows_reported(attempts)
        if not 0 <= outcome.in_flight <= outcome.in_flight_allowed:
            outcome.problems.append(
                f"{outcome.in_flight} rows were trained that the master never learned of; at most "
                f"{outcome.in_flight_allowed} were in flight"
            )
    outcome.lost, outcome.repeated = accounts.lost, accounts.repeated
    outcome.problems += accounts.problems
    if accounts.lost:
        outcome.problems.append(f"{accounts.lost} samples were never trained")
    pods = kept.pods()
    servers = []
    for index in itertools.count():
        first = pod_name(prepared.job_id, Role.PARAMETER_SERVER, index)
        held = [pod for pod in pods if pod == first or pod.startswith(f"{first}-r")]
        if not held and index >= run.shape.servers:
            break
        # Oldest first: `-r10` came after `-r9`.
        servers.append([kept.log_of(pod) for pod in sorted(held, key=lambda pod: (len(pod), pod))])
    done = [migration for migration in story.migrations if migration.outcome == DONE]
    outcome.migrations, outcome.pauses = len(done), [round(each.pause_seconds or 0.0, 3) for each in done]
    # A lost journal may have held the only trace of a change, except for the pods themselves.
    is_fixed = not (outcome.plans or story.migrations) and len(servers) == run.shape.servers
    outcome.problems += check_restores(servers, story, begun, is_fixed=is_fixed)
    outcome.problems += check_rows(site, prepared)
    records, problems = check_progress(site, prepared)
    outcome.records, outcome.problems = records, outcome.problems + problems
    outcome.problems += torn_records(site.store, job_name)


def check_rows(site: Site, prepared: Prepared) -> list[str]:
    """Checks that the last record has exactly one row for every id of the training data.

    Reading the record compares every byte with the checksums that the servers wrote.
    """
    job = job_from_json(prepared.job_json)
    names = [feature.name for feature in job.spec.data.sparse]
    files = [file.uri for file in read_manifest(prepared.training_manifest).files]
    data = pa.concat_tables([pq.read_table(file, columns=names) for file in files])
    newest, _ = list_records(str(site.store), job.metadata.name, prepared.job_id)[0]
    contents = contents_of(newest)
    held: dict[str, list[int]] = {name: [] for name in names}
    for table, row_id in [*contents.rows, *contents.doubled]:
        held[table].append(row_id)
    problems = []
    for name in names:
        ids, is_missing, _ = encode_ids(data[name].combine_chunks(), "integer", name)
        # No value has a row of its own, like any other.
        expected = np.unique(np.where(is_missing, MISSING_ID, ids))
        found, times = np.unique(np.array(held[name], np.int64), return_counts=True)
        lost, foreign = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
        if len(lost) or len(foreign) or (times > 1).any():
            problems.append(
                f"table {name}: of {len(expected)} ids {len(lost)} have no row; {(times > 1).sum()} have several, "
                f"{len(foreign)} rows are of no id"
            )
    return problems


def check_progress(site: Site, prepared: Prepared) -> tuple[int, list[str]]:
    """Checks that each record continues the previous one, even if servers were created, moved or lost in between.

    Without a rollback between two records, the later one has every row, push and dense step of the earlier one, and the
    same bytes for rows that were not trained in between.

    Returns:
        The number of compared pairs of records, and one sentence for each loss.
    """
    job_name = job_from_json(prepared.job_json).metadata.name
    records = list_records(str(site.store), job_name, prepared.job_id)
    compared, problems, before = 0, list[str](), None
    for uri, _ in sorted(records, key=lambda record: _cut_number(record[1])):
        contents = contents_of(uri)
        if before is not None and before.generation == contents.generation:
            compared += 1
            problems += [f"{uri}: {problem}" for problem in setbacks(before, contents)]
        before = contents
    return compared, problems


def _cut_number(manifest: RecordManifest) -> int:
    """Saves are numbered in the order in which they begin."""
    return int(manifest.parts[0].cut.rpartition("-")[2])
