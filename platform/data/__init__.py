"""Training data: manifests, shard readers, trainer-ready batches, metric sketches, generated and converted data.

It uses numpy and pyarrow, and a compiled loop for reading windows. torch, the master's decisions and models do not
belong here.
"""

from elastrec.platform.data.convert import ByFractions, ByRows, ByTime, ConvertReport, convert
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.generating.generator import (
    DayTruth,
    GenerateReport,
    GenerateSpec,
    generate,
    read_report,
    training_data_for,
)
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.manifest import (
    DataFile,
    DataManifest,
    build_manifest,
    read_manifest,
    write_manifest,
    write_new_manifest,
)
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch, Calibration
from elastrec.platform.data.partitions import Partition, existing_partitions
from elastrec.platform.data.reading.batches import (
    JaggedIds,
    dense_of,
    ids_of,
    label_of,
    targets_of,
)
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.reader import ShardReader

__all__ = [
    "MISSING_ID",
    "BinaryMetricsSketch",
    "ByFractions",
    "ByRows",
    "ByTime",
    "Calibration",
    "ConvertReport",
    "DataFile",
    "DataManifest",
    "DayTruth",
    "GenerateReport",
    "GenerateSpec",
    "JaggedIds",
    "LogCalendar",
    "Partition",
    "RowEncoder",
    "ShardReader",
    "build_manifest",
    "convert",
    "dense_of",
    "existing_partitions",
    "generate",
    "ids_of",
    "label_of",
    "read_manifest",
    "read_report",
    "targets_of",
    "training_data_for",
    "write_manifest",
    "write_new_manifest",
]
