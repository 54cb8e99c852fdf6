"""Calls benchmarks with the arguments of the command line."""

from __future__ import annotations

import subprocess
import sys


def benchmark(name: str, *arguments: str, timeout_seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *arguments],
        capture_output=True, text=True, check=False, timeout=timeout_seconds,
    )  # fmt: skip
