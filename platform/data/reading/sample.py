"""read_sample: the first rows of a manifest, raw and trainer-ready, for a look at a log before all of it is read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.reading.bad_rows import BadRowLedger
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError


def read_sample(
    data: TrainingData, manifest: DataManifest, rows: int, extra: Sequence[str] = ()
) -> tuple[pa.Table, pa.RecordBatch]:
    """The first `rows` rows, bad ones left out of both forms.

    Args:
        extra: columns of the raw rows besides those of the features.

    Raises:
        DataError: an extra column is missing, all rows are bad, or one is and the job allows none.
    """
    encoder = RowEncoder(data)
    reader = RawReader(data, manifest, encoder.readings, extra=extra)
    tables, batches = [], []
    for piece in reader.read(0, min(rows, manifest.rows)):
        missing = [name for name in extra if name not in piece.table.column_names]
        if missing:
            raise DataError(
                f"{piece.file.uri}: the columns {missing} are missing; correct data.session, data.timestamp"
            )
        encoded = encoder.encode(piece.table)
        if data.bad_rows.policy == "fail":
            BadRowLedger(data.bad_rows).judge(piece, encoded)
        good = pa.array(~encoded.bad_B)
        tables.append(piece.table.filter(good))
        batches.append(encoded.batch.filter(good))
    reader.close()
    raw, batch = pa.concat_tables(tables, promote_options="permissive").combine_chunks(), pa.concat_batches(batches)
    if not raw.num_rows:
        raise DataError(f"{data.path}: all {rows} rows of the sample are bad; correct the data section")
    return raw, batch
