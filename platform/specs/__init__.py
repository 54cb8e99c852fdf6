"""Specs: the files that users write, the metrics that jobs report, and the errors of all packages. Imports no other
room.

Only pydantic models, their text forms, the error hierarchy and the settings of a process belong here; nothing that
opens a socket, starts a process or knows a cluster.
"""

from elastrec.platform.specs.data import DenseFeature, FileFormat, Partitioning, SparseFeature, TrainingData
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics
from elastrec.platform.specs.text.loading import dump_job, job_from_json, job_to_json, load_job

__all__ = [
    "DenseFeature",
    "FileFormat",
    "Partitioning",
    "Phase",
    "PodMetrics",
    "Role",
    "SparseFeature",
    "TrainingData",
    "TrainingJob",
    "TrainingMetrics",
    "dump_job",
    "job_from_json",
    "job_to_json",
    "load_job",
]
