"""Loads large libraries faster: without the garbage collector, and without unused parts.

When torch and torchrec are loaded, the garbage collector takes a quarter of the CPU time. numba loads half of its
modules at its first kernel. The package `torchrec` imports its own distributed training, and with it torch's compiler,
which takes 2 s of CPU in each worker, each evaluator and each check of a model, although they do not use it.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGES = ("torchrec", "torchrec.modules")
_LIGHT = (
    "torchrec.modules.activation",
    "torchrec.modules.crossnet",
    "torchrec.modules.deepfm",
    "torchrec.modules.embedding_configs",
    "torchrec.modules.mlp",
    "torchrec.modules.utils",
    "torchrec.pt2",
    "torchrec.pt2.checks",
    "torchrec.sparse",
    "torchrec.sparse.jagged_tensor",
    "torchrec.streamable",
    "torchrec.types",
)
"""The modules of torchrec that trainers use, and those that they import."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables garbage collection inside; objects that are created there are frozen. Also a decorator."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def frozen_afterwards() -> Iterator[None]:
    """Objects that are created inside, and are still needed, are frozen. Also a decorator.

    For what may compile many kernels: numba leaves cycles of 250 MiB, with which a server without a cache of compiled
    kernels exceeded its memory if the collector was disabled.
    """
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()


def postpone_torchrec() -> None:
    """From now on, the modules of torchrec that trainers use are imported without the others.

    The others are imported when a program, such as a user's model, imports another module of torchrec or uses a name of
    one of its packages, such as `torchrec.EmbeddingBagCollection`. Has no effect if torchrec was imported before.
    """
    if "torchrec" not in sys.modules and not any(isinstance(finder, _Postponing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Postponing())


class _Postponing(MetaPathFinder):
    """Finds modules of torchrec until the others are needed, which are then imported as usual."""

    def __init__(self) -> None:
        self._loaders: dict[str, Loader] = {}
        self._lock = threading.RLock()
        self._is_importing = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._is_importing or fullname in _LIGHT or fullname.partition(".")[0] != "torchrec":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            if fullname in _PACKAGES:
                self._loaders[fullname] = spec.loader
                spec.loader = _Empty(spec.loader, self.import_rest)
            else:
                spec.loader = _AfterRest(self.import_rest)
        return spec

    def import_rest(self) -> None:
        """Runs the code of the packages; after that, no imports are postponed."""
        with self._lock:
            # Modules that the packages import use names of the packages before these are defined.
            if self._is_importing or self not in sys.meta_path:
                return
            self._is_importing = True
            try:
                for name, loader in self._loaders.items():
                    loader.exec_module(sys.modules[name])
                    del sys.modules[name].__getattr__
                sys.meta_path.remove(self)
            finally:
                self._is_importing = False


class _Empty(Loader):
    """Creates a package without running its code, which runs when an undefined name is used."""

    def __init__(self, loader: Loader, import_rest: Callable[[], None]) -> None:
        self._loader, self._import_rest = loader, import_rest

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # As importlib.util.LazyLoader does: sources and resources are asked of the loader that has them.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader

        def get(name: str) -> Any:
            # Programs that look through all modules ask each of them for names such as `__warningregistry__`.
            if not (name.startswith("__") and name.endswith("__")):
                self._import_rest()
            if name not in vars(module):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return vars(module)[name]

        module.__getattr__ = get  # type: ignore[method-assign]


class _AfterRest(Loader):
    """Imports a module after the packages' own code, which may import it: modules of torchrec import one another."""

    def __init__(self, import_rest: Callable[[], None]) -> None:
        self._import_rest = import_rest

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands in sys.modules at the end.
        del sys.modules[module.__name__]
        self._import_rest()
        import_module(module.__name__)
