"""Sets the home of Airflow to a folder of this test session before Airflow is first imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

if "AIRFLOW_HOME" not in os.environ:
    _home = tempfile.mkdtemp(prefix="elastrec-airflow-")
    os.environ["AIRFLOW_HOME"] = _home
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
