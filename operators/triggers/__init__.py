"""Triggers observe jobs. A job runs in the cluster, independent of the triggerer.

Airflow stores the paths of these classes in its database. Operators and what they publish do not enter this room.
"""

from elastrec.operators.triggers.base import TIMED_OUT, JobTrigger
from elastrec.operators.triggers.shape import GONE, ShapeTrigger
from elastrec.operators.triggers.waits import ENDED, EvaluatorTrigger, JobPhaseTrigger, TrackingTrigger

__all__ = [
    "ENDED",
    "GONE",
    "TIMED_OUT",
    "EvaluatorTrigger",
    "JobPhaseTrigger",
    "JobTrigger",
    "ShapeTrigger",
    "TrackingTrigger",
]
