"""Durable state of a job: stores, checkpoint records, and what of an old record a changed job file can keep.

Nothing of ours but `elastrec.platform.specs` may be imported here, and never torch: masters and parameter servers
load this package.
"""

from elastrec.checkpoints.catalog import discard, latest_record, list_records, newest_records, prune
from elastrec.checkpoints.errors import DamagedRecordError, StoreError
from elastrec.checkpoints.local_store import expect_existing_stores
from elastrec.checkpoints.manifest import RecordKind
from elastrec.checkpoints.mismatch import Adaptation, Decision, Verdict, compare
from elastrec.checkpoints.parts import PartManifest, PartWriter, SectionKey, SectionKind
from elastrec.checkpoints.record import Record, RecordManifest, commit_record, new_record_uri, open_record
from elastrec.checkpoints.store import Store, open_store
from elastrec.checkpoints.summary import DenseSummary, ModelSummary, TableSummary, summarize

__all__ = [
    "Adaptation",
    "DamagedRecordError",
    "Decision",
    "DenseSummary",
    "ModelSummary",
    "PartManifest",
    "PartWriter",
    "Record",
    "RecordKind",
    "RecordManifest",
    "SectionKey",
    "SectionKind",
    "Store",
    "StoreError",
    "TableSummary",
    "Verdict",
    "commit_record",
    "compare",
    "discard",
    "expect_existing_stores",
    "latest_record",
    "list_records",
    "new_record_uri",
    "newest_records",
    "open_record",
    "open_store",
    "prune",
    "summarize",
]
