"""Where workers write rows and predictions for the check of the exported model, and when these are deleted.

They are needed as long as the job's final record can be exported: until its model is published, and after that, if a
task of it may be cleared, until the record is pruned.
"""

from __future__ import annotations

from elastrec.checkpoints.stores.store import Store, open_store


def predictions_folder(store_uri: str, job_name: str, job_id: str) -> str:
    """The URI of the folder of a job's predictions."""
    return f"{store_uri.rstrip('/')}/{_key(job_name, job_id)}"


def delete_predictions(store: str | Store, job_name: str, job_id: str) -> None:
    """Deletes a job's predictions; no error if there are none.

    Raises:
        CheckpointError: the store refused.
    """
    opened = open_store(store)
    opened.delete_tree(_key(job_name, job_id))


def _key(job_name: str, job_id: str) -> str:
    return f"{job_name}/predictions/{job_id}"
