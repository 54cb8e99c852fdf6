"""The user's function that makes the columns of a job out of those of the files (`data.transform`)."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Collection

import pyarrow as pa

from elastrec.platform.specs.errors import DataError


class Transform:
    """A user's function, imported by its path.

    Args:
        path: `package.module:function`; the function takes and returns a record batch.
        columns: names of columns that the result must have.

    Raises:
        DataError: there is no such module or function.
    """

    def __init__(self, path: str, columns: Collection[str]) -> None:
        self._path, self._columns = path, columns
        module, _, name = path.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:  # the user's module may do anything
            raise DataError(
                f"data.transform: {path} cannot be imported ({type(error).__name__}: {error}); it must be importable "
                "in every pod (PYTHONPATH)"
            ) from error
        if not callable(self._function):
            raise DataError(f"data.transform: {path} is a {type(self._function).__name__}; expected a function")

    def __call__(self, table: pa.Table) -> pa.Table:
        """The function's result for these rows, which it gets as one record batch.

        Raises:
            DataError: the function failed (with its traceback), or the result is no record batch, has another number
                of rows or lacks columns.
        """
        batch = table.combine_chunks().to_batches()[0]
        try:
            result = self._function(batch)
        except Exception as error:
            raise DataError(
                f"data.transform: {self._path} failed on {batch.num_rows} rows: {type(error).__name__}: {error}\n"
                + traceback.format_exc()
            ) from error
        if not isinstance(result, pa.RecordBatch):
            raise DataError(f"data.transform: {self._path} returned {type(result).__name__}, expected a RecordBatch")
        if result.num_rows != batch.num_rows:
            raise DataError(
                f"data.transform: {self._path} made {result.num_rows} rows of {batch.num_rows}; the number must stay"
            )
        missing = [name for name in self._columns if name not in result.schema.names]
        if missing:
            raise DataError(
                f"data.transform: {self._path} returned no columns {missing}; returned: {result.schema.names}"
            )
        return pa.Table.from_batches([result])
