"""Forbidden imports of the scaling and simulator packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ALLOWED = {
    "scaling": ("elastrec.platform.scaling", "elastrec.platform.specs"),
    "simulator": ("elastrec.platform.scaling", "elastrec.platform.simulator", "elastrec.platform.specs"),
}
EFFECTS = {"time", "socket", "subprocess", "mlflow", "airflow", "pathlib", "psutil", "torch", "datetime", "random"}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_nothing_here_touches_a_cluster_a_file_or_a_clock(room: str) -> None:
    wrong = []
    for file in sorted((ROOT / "platform" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                ours = name.startswith("elastrec.")
                if (ours and not name.startswith(ALLOWED[room])) or name.split(".")[0] in EFFECTS:
                    wrong.append(f"{file.name} imports {name}")
    assert not wrong


def test_the_default_policy_never_loads_torch_or_mlflow() -> None:
    code = (
        "import sys; from elastrec.platform.scaling.policy import load_policy; load_policy('three-stage');"
        "import elastrec.platform.scaling.search.genetic;"
        "print(sorted(m for m in ('torch', 'mlflow', 'airflow', 'matplotlib') if m in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[]"
