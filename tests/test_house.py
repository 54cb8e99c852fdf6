"""Rules of the repository: allowed imports, modules that light processes may load, and forbidden texts."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import load

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("platform", "operators", "trainers", "checkpoints", "dags")

# room → the rooms of ours that it may import; an inner room without a row obeys the row of the one it lies in
ALLOWED = {
    "dags": ("dags", "operators", "platform"),
    "operators": ("operators", "platform"),
    "trainers": ("trainers", "checkpoints", "platform.specs", "platform.transport", "platform.data", "platform.memory"),
    "trainers.models": ("trainers.models", "trainers.deduplication", "platform.specs", "platform.data"),
    "trainers.deduplication": ("trainers.deduplication", "platform.data"),
    "trainers.evaluation": ("trainers.evaluation", "platform.specs", "platform.transport", "platform.data"),
    "checkpoints": ("checkpoints", "platform.specs", "platform.memory"),
    "platform": ("platform", "checkpoints"),
    "platform.memory": ("platform.memory",),
    "platform.specs": ("platform.specs",),
    "platform.transport": ("platform.transport", "platform.specs"),
    "platform.transport.messages": ("platform.transport.messages", "platform.specs"),
    "platform.data": ("platform.data", "platform.specs", "platform.transport"),
    "platform.data.features": (
        "platform.data.features",
        "platform.data.deduplicating.deduplication",
        "platform.data.entries",
        "platform.data.files",
        "platform.data.reading",
        "platform.specs",
    ),
    "platform.data.reading.files": (
        "platform.data.reading.files",
        "platform.data.entries",
        "platform.data.files",
        "platform.specs",
    ),
    "platform.data.metrics": ("platform.data.metrics", "platform.specs"),
    "platform.clusters": ("platform.clusters", "platform.memory", "platform.specs", "platform.transport"),
    "platform.scaling": ("platform.scaling", "platform.specs"),
    "platform.simulator": ("platform.simulator", "platform.scaling", "platform.specs"),
    "platform.master": (
        "platform.master",
        "platform.clusters",
        "platform.data",
        "platform.history",
        "platform.scaling",
        "platform.specs",
        "platform.transport",
        "checkpoints",
    ),
    "platform.master.machine": (
        "platform.master.machine",
        "platform.master.measuring",
        "platform.master.pods",
        "platform.clusters",
        "platform.specs",
        "platform.transport",
        "checkpoints",
    ),
    "platform.jobs": (
        "platform.jobs",
        "platform.clusters",
        "platform.data",
        "platform.history",
        "platform.master",
        "platform.scaling",
        "platform.simulator",
        "platform.specs",
        "platform.transport",
        "checkpoints",
    ),
    "platform.history": (
        "platform.history",
        "platform.specs",
        "platform.data",
        "platform.scaling",
        "platform.jobs.types",
        "platform.clusters.pods",
    ),
}
MOST_MODULES = 17
"""In one room: one with more gets rooms inside that say what they are."""


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def sources(room: str) -> Iterator[Path]:
    yield from sorted((ROOT / room.replace(".", "/")).rglob("*.py"))


@functools.cache
def imported(file: Path) -> tuple[str, ...]:
    """Modules of ours that a file imports, without the leading package name."""
    found: list[str] = []
    for node in ast.walk(parsed(file)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                f"{node.module}.{alias.name}" if node.module == "elastrec" else str(node.module) for alias in node.names
            ]
        found += [name.removeprefix("elastrec.") for name in names if name.startswith("elastrec.")]
    return tuple(found)


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources(room)
        for name in imported(file)
        if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED[room])
    ]
    assert not wrong


@pytest.mark.parametrize("module", ["feed", "loop", "session", "trainer", "work", "evaluating"])
def test_a_worker_uses_only_the_protocol_of_its_trainer(module: str) -> None:
    own = ("embedding", "parameter_server", "models", "deduplication", "worker.step", "worker.parameter_server_trainer")
    names = imported(ROOT / f"trainers/worker/{module}.py")
    assert names and not [name for name in names if name.startswith(tuple(f"trainers.{each}" for each in own))]
    assert "torch" not in (ROOT / f"trainers/worker/{module}.py").read_text().replace("torchrec", "").split()


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning, FutureWarning])
def test_a_warning_is_an_error(category: type[Warning]) -> None:
    with pytest.raises(category, match="a test's own"):
        warnings.warn("a test's own", category, stacklevel=1)


def test_the_platform_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    system = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.system())"], cwd=ROOT, capture_output=True, text=True
    )
    assert system.stdout.strip() == "Linux"


def loaded_by(modules: tuple[str, ...], unwanted: tuple[str, ...]) -> dict[str, list[str]]:
    """Unwanted libraries that are there after the import of one module, which a new process imports in turn."""
    code = (
        "import importlib, json, sys\n"
        "for module in sys.argv[2].split():\n"
        "    importlib.import_module(module)\n"
        "    print(json.dumps([module, [name for name in sys.argv[1].split() if name in sys.modules]]))"
    )
    command = [sys.executable, "-c", code, " ".join(unwanted), " ".join(modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(line) for line in done.stdout.strip().splitlines()[-len(modules) :])


def test_the_light_processes_never_load_torch() -> None:
    light = (
        "elastrec.platform.master.service.service",
        "elastrec.platform.clusters.local.agent.service",
        "elastrec.platform.cli.commands.run",
        "elastrec.platform.data.convert",
        "elastrec.platform.data.reading.source",
        "elastrec.trainers.parameter_server.pod",
        "elastrec.checkpoints",
        "elastrec.operators.training",
    )
    assert loaded_by(light, ("torch", "torchrec", "fbgemm_gpu")) == {module: [] for module in light}


def test_the_start_of_a_job_loads_no_library_that_it_does_not_need() -> None:
    starting = ("elastrec.platform.master.__main__", "elastrec.platform.jobs")
    unneeded = ("pandas", "scipy", "mlflow", "matplotlib", "numba")
    assert loaded_by(starting, unneeded) == {module: [] for module in starting}


def test_metrics_are_merged_without_loading_the_readers_of_click_logs() -> None:
    heads = "elastrec.platform.data.metrics.heads"
    assert loaded_by((heads,), ("pyarrow", "structlog")) == {heads: []}


def test_only_a_jobs_master_touches_single_pods_of_the_job() -> None:
    outside = [file for room in ROOMS for file in sources(room) if "clusters" not in file.parts]
    of_fleets = {
        file.relative_to(ROOT).parts[:2]
        for file in outside
        if re.search(r"\bconnect_fleet\b|\bFleet\b|\.fleet\(", file.read_text())
    }
    assert of_fleets == {("platform", "master")}
    makers = {file.parent.name for file in outside if re.search(r"\bLocalCluster\b", file.read_text())}
    assert makers == set(), "those outside use a Launcher"


def test_only_one_room_of_a_master_imports_the_scaling_algorithms() -> None:
    knowing = {
        file.relative_to(ROOT).parent
        for file in sources("platform.master")
        if any(name.startswith("platform.scaling") for name in imported(file))
    }
    assert knowing == {Path("platform/master/scaling")}


def test_only_a_benchmark_speaks_arrow_flight() -> None:
    product = [file for room in ROOMS for file in sources(room)]
    assert len(product) > 100
    assert not [str(file.relative_to(ROOT)) for file in product if re.search(r"pyarrow\W.*flight", file.read_text())]


def test_a_room_holds_no_more_modules_than_one_can_keep_in_mind() -> None:
    folders = {file.parent for room in (*ROOMS, "benchmarks", "tests", "tools") for file in sources(room)}
    modules = {str(folder.relative_to(ROOT)): len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert len(modules) > 80
    assert not {folder: count for folder, count in modules.items() if count > MOST_MODULES}


def test_every_room_has_a_row_or_is_inside_of_one_with_a_row() -> None:
    rooms = {f"platform.{folder.name}" for folder in (ROOT / "platform").iterdir() if (folder / "__init__.py").exists()}
    # The command line may import whatever the platform has; nobody imports it.
    assert rooms - ALLOWED.keys() == {"platform.cli"}
    importers = [
        name for room in ROOMS for file in sources(room) for name in imported(file) if "platform/cli" not in str(file)
    ]
    assert not [name for name in importers if name.startswith("platform.cli")]


def test_every_package_states_its_purpose() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for room in ROOMS
        for file in sources(room)
        if file.name != "__init__.py" or file.read_text().strip()
        if not ast.get_docstring(parsed(file))
    ]
    assert not silent


def test_the_wheel_has_every_package() -> None:
    packed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {file.parent.relative_to(ROOT) for room in ROOMS for file in sources(room)}
    assert packed == {f"elastrec.{'.'.join(folder.parts)}" for folder in folders if folder != Path("platform")}


def test_every_package_in_a_namespace_is_marked_as_typed() -> None:
    tops = {file.parent.relative_to(ROOT).parts for room in ROOMS for file in sources(room)} - {("dags",)}
    packages = {parts[: 2 if parts[0] == "platform" else 1] for parts in tops} - {("platform",)}
    assert len(packages) > 10
    assert not [package for package in packages if not ROOT.joinpath(*package, "py.typed").exists()]


def test_nothing_is_ever_unpickled() -> None:
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    wrong = []
    for room in ROOMS:
        for file in sources(room):
            for node in ast.walk(parsed(file)):
                if isinstance(node, ast.Import):
                    wrong += [f"{file}: {a.name}" for a in node.names if a.name.split(".")[0] in forbidden]
                elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in forbidden:
                    wrong.append(f"{file}: {node.module}")
                elif (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "load"
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in ("torch", "np", "numpy")
                    and any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in node.keywords)
                ):
                    wrong.append(f"{file}:{node.lineno}")
                elif (
                    isinstance(node, ast.Attribute) and node.attr == "load" and getattr(node.value, "id", "") == "torch"
                ):
                    wrong.append(f"{file}:{node.lineno}: torch.load")
    assert not wrong


def test_every_mutant_fits_the_code_and_names_tests_that_exist() -> None:
    mutants = load()
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names) > 20
    problems = [f"{mutant.name}: {problem}" for mutant in mutants if (problem := mutant.problem(ROOT))]
    assert problems == [], "bring tests/mutants.toml along with the code"
