"""A kernel is compiled anew when one that it calls has changed, although its own file has not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import elastrec.trainers.parameter_server as room

_CODE = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("room", sys.argv[1] + "/__init__.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(os.environ["NUMBA_CACHE_DIR"])
"""


def cache_folder(package: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    run = subprocess.run(
        [sys.executable, "-c", _CODE, str(package)], env=kept | variables, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_compiled_kernels_are_kept_by_the_state_of_all_sources(tmp_path: Path) -> None:
    package = tmp_path / "parameter_server"
    shutil.copytree(Path(room.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    first = cache_folder(package)
    assert first == cache_folder(package)
    pools = package / "storage" / "pools.py"
    pools.write_text(pools.read_text() + "\n# changed\n")
    assert cache_folder(package) != first


def test_a_folder_of_the_user_is_left_alone(tmp_path: Path) -> None:
    assert cache_folder(Path(room.__file__).parent, NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)
