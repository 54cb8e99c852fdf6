"""Durable state of a job: stores, checkpoint records, and which parts of a record a changed job file can keep.

Of elastrec, only `elastrec.platform.specs` may be imported here, and never torch, because masters and parameter servers
load this package.
"""

from elastrec.checkpoints.answers import GroupPart, answer
from elastrec.checkpoints.catalog import discard, latest_record, list_records, newest_records, prune, prune_final
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.errors import DamagedRecordError, StoreError
from elastrec.checkpoints.manifest import RecordKind, RecordManifest
from elastrec.checkpoints.mismatch import Adaptation, Decision, Verdict, adapt, compare
from elastrec.checkpoints.parts import CHUNK_BYTES, PartManifest, PartWriter
from elastrec.checkpoints.predictions import delete_predictions, predictions_folder
from elastrec.checkpoints.quantized import quantized
from elastrec.checkpoints.record import Record, blamed_on, open_record
from elastrec.checkpoints.rows import BucketRows
from elastrec.checkpoints.sections import Attribute, SectionKind
from elastrec.checkpoints.shares import chain_shares
from elastrec.checkpoints.stores.local_store import expect_existing_stores
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.checkpoints.summary import DenseSummary, ModelSummary, TableSummary, summarize
from elastrec.checkpoints.terms import (
    SupersededError,
    Term,
    check_term,
    conclude,
    concluded_term,
    launched_jobs,
    list_terms,
    newest_term,
    read_launch,
    take_term,
    write_launch,
)

__all__ = [
    "CHUNK_BYTES",
    "Adaptation",
    "Attribute",
    "BucketRows",
    "DamagedRecordError",
    "Decision",
    "DenseSummary",
    "GroupPart",
    "ModelSummary",
    "PartManifest",
    "PartWriter",
    "Record",
    "RecordKind",
    "RecordManifest",
    "SectionKind",
    "Store",
    "StoreError",
    "SupersededError",
    "TableSummary",
    "Term",
    "Verdict",
    "adapt",
    "answer",
    "blamed_on",
    "chain_shares",
    "check_term",
    "commit_record",
    "compare",
    "conclude",
    "concluded_term",
    "delete_predictions",
    "discard",
    "expect_existing_stores",
    "latest_record",
    "launched_jobs",
    "list_records",
    "list_terms",
    "new_record_uri",
    "newest_records",
    "newest_term",
    "open_record",
    "open_store",
    "predictions_folder",
    "prune",
    "prune_final",
    "quantized",
    "read_launch",
    "summarize",
    "take_term",
    "write_launch",
]
