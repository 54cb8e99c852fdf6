"""The user's code that an exported model brings, beside another version of the same modules.

Python has one module for each name in a process. A champion was trained by an earlier version of the user's code than
the challenger, and its numbers are only right with that version.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from mlflow.models import Model

_FLAVOR = "python_function"


class OwnCode:
    """The modules in a model's folder `code`, which take the place of those of the same names while they are used.

    Not for several threads.

    Args:
        model: local folder of an MLflow model; one without code of its own changes nothing.

    Raises:
        MlflowException: the folder holds no model.
    """

    def __init__(self, model: Path) -> None:
        described = Model.load(str(model)).flavors.get(_FLAVOR, {})
        code = described.get("code")
        self._folder = model / str(code) if code else None
        self._names = {entry.name.partition(".")[0] for entry in self._folder.iterdir()} if self._folder else set()
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Imports find these modules, also those that the model's functions execute when they are called."""
        if self._folder is None:
            yield
            return
        others, path = self._taken(), list(sys.path)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            self._modules = self._taken()
            sys.modules.update(others)
            sys.path[:] = path

    def _taken(self) -> dict[str, ModuleType]:
        """Takes the modules of these names away from the process."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in names}
