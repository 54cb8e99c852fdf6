"""Job records in MLflow: requested and granted sizes, measurements, costs and outcomes, which later jobs use.

`Reporter` and the points are small enough for a job master; mlflow and matplotlib are imported only in the functions of
`History` that need them. torch must never be imported here.
"""

from elastrec.platform.history.delivery.reporter import Reporter
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
from elastrec.platform.specs.environment import disable_usage_data

disable_usage_data()

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
