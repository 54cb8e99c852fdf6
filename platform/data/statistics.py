"""What the footers of Parquet files say about a column, without reading its values."""

from __future__ import annotations

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.files import opened_parquet
from elastrec.platform.specs.data import FileFormat, TrainingData


def only_value(data: TrainingData, manifest: DataManifest, column: str) -> float | None:
    """The number that a column holds in all rows, empty fields aside; None if there are several, or it is not known.

    It is not known of text files, of files without statistics, and of columns that a transform may change. Reads
    footers up to the first file that does not have the value.

    Raises:
        DataError: a file cannot be read.
    """
    if data.format is not FileFormat.PARQUET or data.transform is not None:
        return None
    only: float | None = None
    for file in manifest.files:
        with opened_parquet(file.uri) as parquet:
            metadata = parquet.metadata
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        if column not in paths:
            return None  # it is in the name of a folder
        index = paths.index(column)
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group).column(index).statistics
            if found is None or not found.has_min_max or found.min != found.max:
                return None
            if not isinstance(found.min, int | float) or only not in (None, found.min):
                return None
            only = float(found.min)
    return only
