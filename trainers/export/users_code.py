"""The user's code that an exported model needs: the modules of its model and transform, and what these import."""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from pathlib import Path

from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.export.wheel import PACKAGE

_INSTALLED = ("site-packages", "dist-packages")
_NOT_THE_USERS = (PACKAGE, "__main__", *sys.stdlib_module_names)


def users_code(job: TrainingJob) -> list[str]:
    """Files or packages that no installation contains."""
    return sorted({str(source) for source in _sources(job).values() if not _is_installed(source)})


def users_distributions(job: TrainingJob) -> list[str]:
    """Names of the installations that are imported."""
    installed = [top for top, source in _sources(job).items() if _is_installed(source)]
    by_module = packages_distributions() if installed else {}
    return sorted({name for top in installed for name in by_module.get(top, ())})


def _sources(job: TrainingJob) -> dict[str, Path]:
    """The files or folders of the modules, by the name of the outermost one.

    Imports are followed through all modules that are not installed, wherever they stand in them.
    """
    sources: dict[str, Path] = {}
    paths = (job.spec.model.architecture, job.spec.data.transform or "")
    waiting, seen = [path.partition(":")[0] for path in paths if ":" in path], set[str]()
    while waiting:
        module = waiting.pop()
        top, *within = module.split(".")
        if module in seen or top in _NOT_THE_USERS or (top in sources and _is_installed(sources[top])):
            continue
        seen.add(module)
        spec = _found(module)
        if spec is None or spec.origin is None:
            # A package without __init__.py has no origin, and may have parts in several folders.
            continue
        origin = Path(spec.origin).resolve()
        inner = origin.parent if spec.submodule_search_locations else origin
        sources[top] = inner.parents[len(within) - 1] if within else inner
        if not _is_installed(sources[top]):
            waiting += [*_parents(module), *_imported(spec)]
    return sources


def _found(module: str) -> ModuleSpec | None:
    # Other parts of a module are found by importing what contains them, which may fail in any way.
    with suppress(Exception):
        return importlib.util.find_spec(module)
    return None


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _imported(spec: ModuleSpec) -> list[str]:
    """Names of the modules that a module imports; some of them are names within a module."""
    assert spec.origin is not None
    package = spec.name if spec.submodule_search_locations else spec.name.rpartition(".")[0]
    names: list[str] = []
    # A file for another version of Python may be imported under a condition.
    with suppress(SyntaxError, ValueError, ImportError):
        tree = ast.parse(Path(spec.origin).read_bytes() if spec.origin.endswith(".py") else b"")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                named = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(named, package) if node.level else named
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def _is_installed(source: Path) -> bool:
    places = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return any(parent in places or parent.name in _INSTALLED for parent in source.parents)
