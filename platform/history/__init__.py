"""Job records in MLflow: what was asked, granted, measured and paid, and how it ended; the platform's memory.

`Reporter` and the points are light enough for a job master; mlflow and matplotlib are imported only by the functions
of `History` that need them. torch must never be imported here.
"""

from elastrec.platform.history.history import History
from elastrec.platform.history.model_registry import ModelRegistry
from elastrec.platform.history.points import (
    CostMeter,
    Point,
    calibration_points,
    final_points,
    window_points,
)
from elastrec.platform.history.records import JobFilter, JobRecord, Sizes
from elastrec.platform.history.reporter import Reporter

__all__ = [
    "CostMeter",
    "History",
    "JobFilter",
    "JobRecord",
    "ModelRegistry",
    "Point",
    "Reporter",
    "Sizes",
    "calibration_points",
    "final_points",
    "window_points",
]
