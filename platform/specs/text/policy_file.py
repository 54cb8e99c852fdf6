"""A policy that is one Python file: `FILE.py:CLASS` wherever a policy's name is expected. Nothing is packaged.

The file is imported again at every load, so that changes take effect at once. It may import installed packages, but no
files next to it: a policy with several modules must be a package that is registered as an entry point.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from elastrec.platform.specs.errors import ScalingError

_SHAPE = "FILE.py:CLASS, for example my_policy.py:MyPolicy"


def load_policy_file(name: str) -> Any:
    """Returns an instance of the class in the file. The caller checks that it is a policy.

    Args:
        name: `FILE.py:CLASS`; a relative path is resolved against the working directory.

    Raises:
        ScalingError: no such file or class, or the file or its class raises; with the line of the file.
    """
    path, _, symbol = name.rpartition(":")
    file = Path(path)
    if not symbol.isidentifier():
        raise ScalingError(f"policy: {name} is not allowed; allowed: {_SHAPE}; name the class after the colon")
    if not file.is_file():
        raise ScalingError(f"policy {name}: there is no file {file.absolute()}; allowed: {_SHAPE}; correct the path")
    module = _imported(file, name)
    made = getattr(module, symbol, None)
    if made is None:
        classes = [each for each, value in vars(module).items() if _is_own_class(value, module)]
        found = f"its classes are {', '.join(classes)}" if classes else "it defines no class"
        raise ScalingError(f"policy {name}: {file.name} has no {symbol}; {found}; name one of them")
    try:
        return made()
    except Exception as error:  # the file is foreign code
        raise ScalingError(f"policy {name}: {symbol}() failed: {_described(error, file)}; fix {file.name}") from error


def _is_own_class(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _imported(file: Path, name: str) -> ModuleType:
    resolved = file.resolve()
    # Two files of one name are two modules.
    module_name = f"elastrec_policy_{sha256(str(resolved).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise ScalingError(f"policy {name}: {file} is no Python file; allowed: {_SHAPE}; rename it to end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and msgspec look their module up by its name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is foreign code
        del sys.modules[module_name]
        raise ScalingError(
            f"policy {name}: {file.name} cannot be imported: {_described(error, file)}; fix it"
        ) from error
    return module


def _described(error: Exception, file: Path) -> str:
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file.resolve())]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    where = f", line {line}" if line is not None else ""
    return f"{type(error).__name__}: {error}{where}"
