"""pyproject.toml declares what the product imports, and nothing else."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("platform", "operators", "trainers", "checkpoints", "dags")
# Distributions whose module has another name.
MODULES = {
    "apache-airflow": "airflow",
    "apache-airflow-providers-openlineage": "airflow",
    "apache-airflow-providers-standard": "airflow",
    "fbgemm-gpu-cpu": "fbgemm_gpu",
    "openlineage-python": "openlineage",
    "pyyaml": "yaml",
}
# The lock installs torchrec without its own dependencies, of which one would be the CUDA build of fbgemm.
IMPORTED_BY_TORCHREC = {"fbgemm_gpu", "torchmetrics", "tensordict", "pyre_extensions", "tqdm"}
# Modules of a library's own dependency that are part of its interface.
PART_OF = {
    "botocore": "boto3",
    "llvmlite": "numba",
    "py4j": "pyspark",
    "sqlalchemy": "mlflow",
    "typing_extensions": "pydantic",
}
ONLY_FOR_TYPES = {"mypy_boto3_s3"}
# fsspec imports the library of a URI's scheme by itself.
IMPORTED_BY_FSSPEC = {"requests", "gcsfs", "adlfs"}

# The standard library's zoneinfo imports it where the system has no time zones.
IMPORTED_BY_ZONEINFO = {"tzdata"}


def declared() -> set[str]:
    """Modules of the dependencies and of the extras that users install (all but `test`)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [needs for name, needs in project["optional-dependencies"].items() if name != "test"]
    requirements = [*project["dependencies"], *(each for needs in extras for each in needs)]
    names = [re.split(r"[\[<>=~!; ]", requirement, maxsplit=1)[0] for requirement in requirements]
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


@functools.cache
def imported() -> frozenset[str]:
    """Top-level modules that the product imports, without the standard library and our own."""
    modules: set[str] = set()
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    modules.add(node.module.split(".")[0])
    return frozenset(modules - set(sys.stdlib_module_names) - {"elastrec"})


def test_every_imported_library_is_declared() -> None:
    needed = {PART_OF.get(module, module) for module in imported() - ONLY_FOR_TYPES}
    assert not needed - declared()


def test_every_declared_library_is_imported() -> None:
    assert not declared() - imported() - IMPORTED_BY_TORCHREC - IMPORTED_BY_FSSPEC - IMPORTED_BY_ZONEINFO


def test_the_declared_licence_is_beside_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
