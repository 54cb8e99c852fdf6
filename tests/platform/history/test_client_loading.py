"""mlflow is imported in the background, and import errors are reported where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastrec.platform.history.connection import Connection, client_loaded_beside
from elastrec.platform.specs.errors import HistoryError


def test_mlflow_is_there_when_the_other_work_is_done() -> None:
    code = (
        "import sys\n"
        "from elastrec.platform.history.connection import client_loaded_beside\n"
        "before = 'mlflow' in sys.modules\n"
        "with client_loaded_beside(): pass\n"
        "print(before, 'mlflow.tracking' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_first_use_of_an_mlflow_that_cannot_be_loaded_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow.tracking", raising=False)
    with client_loaded_beside():
        pass
    with pytest.raises(HistoryError, match="ModuleNotFoundError: import of mlflow halted"):
        Connection("http://127.0.0.1:1", "experiment").run_url("1")
