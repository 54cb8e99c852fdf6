"""Kinds of clusters, found as entry points of the group `elastrec.clusters`, and how each is reached.

An entry point's name is the backend's name everywhere; its value is a `Backend`. A backend is loaded when a cluster of
its kind is used, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.clusters.owned_memory import OWNER_BYTES, OwnedMemoryFleet, with_owner
from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.clusters.protocol import Fleet, Launcher
from elastrec.platform.specs.errors import ClusterError, FieldProblem, SpecError
from elastrec.platform.specs.text.decoders import json_decoder

GROUP = "elastrec.clusters"
TAG = "backend"
_INSTALL = f"install a package, with all that it needs, that has an entry point of this name in the group {GROUP}"


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field=TAG):
    """Base of how to reach a cluster; it may hold secrets. A backend declares a subclass with its name as tag:
    `class Config(ClusterConfig, tag="kubernetes")`.

    As JSON, with the tag as field `backend`, it is the file that `ELASTREC_CLUSTER` names and a master's
    `cluster.json`.

    Attributes:
        shared_folders: absolute paths of folders that every node has at the same path as the caller (NFS, a volume).
            Local paths elsewhere are refused for jobs on a remote cluster.
    """

    shared_folders: tuple[str, ...] = ()

    def problems(self) -> list[FieldProblem]:
        """What is wrong with its values; secrets are not shown."""
        return [
            FieldProblem("shared_folders", repr(folder), "absolute paths", "begin it with /")
            for folder in self.shared_folders
            if not Path(folder).is_absolute()
        ]

    @property
    def job_tls(self) -> bool:
        """Whether the pods of a job speak TLS with each other and with callers."""
        return True

    def for_master(self) -> ClusterConfig:
        """What the master of a job needs for its fleet: nothing that only callers outside may do, if possible."""
        return self


class BackendError(ClusterError):
    """A backend that cannot be used here."""

    field = TAG

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{TAG}: {problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Backend:
    """One kind of cluster.

    Attributes:
        config: its own type of configuration, whose tag is the backend's name.
        launcher: a client for those outside of a job; sends nothing yet.
        fleet: a client for the master of the job of this id; sends nothing yet.
        is_remote: pods run on other machines than the caller: they see none of the caller's local paths.
        has_memory_volumes: its fleet honours `PodSpec.memory_volume`. Where it does not, a process of the pod owns the
            memory (`owned_memory.py`), and no fleet of it is sent such a pod.
    """

    config: type[ClusterConfig]
    launcher: Callable[[Any], Launcher]
    fleet: Callable[[Any, str], Fleet]
    is_remote: bool = True
    has_memory_volumes: bool = False

    def as_created(self, pod: PodSpec) -> PodSpec:
        """The pod that this cluster is asked for, for one that a master wants."""
        return pod if self.has_memory_volumes else with_owner(pod)

    def bytes_of_volume(self, size_bytes: int) -> int:
        """What a memory volume takes of a node, beside the size of its pod."""
        return size_bytes if self.has_memory_volumes else size_bytes + OWNER_BYTES


# To look through all installed packages takes 50 ms, which a master's start would pay twice.
_loaded: dict[str, Backend] = {}


def installed_backends() -> tuple[str, ...]:
    """Names of the backends that can be used here."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def load_backend(name: str) -> Backend:
    """The backend of a name.

    Raises:
        BackendError: no installed package offers it, or it cannot be loaded.
    """
    if name in _loaded:
        return _loaded[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                backend = point.load()
            except Exception as error:
                raise BackendError(f"{name!r} cannot be loaded from {point.value}: {error}", _INSTALL) from error
            if not isinstance(backend, Backend):
                raise BackendError(f"{name!r} is {point.value}, which is no Backend", "correct the entry point")
            return _loaded.setdefault(name, backend)
    raise BackendError(f"{name!r} is not allowed; allowed: {', '.join(installed_backends())}", _INSTALL)


def backend_of(config: ClusterConfig) -> Backend:
    """The backend that a configuration is for.

    Raises:
        ClusterError: it is not installed here.
    """
    return load_backend(str(type(config).__struct_config__.tag))


def connect_launcher(config: ClusterConfig) -> Launcher:
    """A client for those outside of a job; nothing is sent yet.

    Raises:
        ClusterError: the backend is not installed here.
    """
    return backend_of(config).launcher(config)


def connect_fleet(config: ClusterConfig, job: str) -> Fleet:
    """A client for the pods of one job; nothing is sent yet.

    Raises:
        ClusterError: the backend is not installed here.
    """
    backend = backend_of(config)
    fleet = backend.fleet(config, job)
    return fleet if backend.has_memory_volumes else OwnedMemoryFleet(fleet)


def encode_config(config: ClusterConfig) -> str:
    """The configuration as JSON; it may hold secrets."""
    return msgspec.json.encode(config).decode()


class _Tagged(msgspec.Struct, frozen=True):
    backend: str


# Made at import, or by one thread: a server of pages reads the configuration on the threads of its first requests.
_tagged = json_decoder(_Tagged)


@cache
def _decoder(config: type[ClusterConfig]) -> msgspec.json.Decoder[ClusterConfig]:
    return json_decoder(config)


def decode_config(text: str | bytes, source: str) -> ClusterConfig:
    """A configuration of an installed backend.

    Args:
        source: where the text came from, for messages.

    Raises:
        SpecError: it is no such configuration.
    """
    try:
        name = _tagged.decode(text).backend
    except msgspec.MsgspecError as error:
        allowed = f"the JSON of a cluster, with the field backend: {', '.join(installed_backends())}"
        raise SpecError([FieldProblem("cluster", f"this text ({error})", allowed)], source) from None
    try:
        config = load_backend(name).config
    except BackendError as error:
        installed = installed_backends()
        value = error.problem if name in installed else repr(name)
        raise SpecError([FieldProblem(TAG, value, ", ".join(installed), error.remedy)], source) from None
    try:
        decoded = _decoder(config).decode(text)
    except msgspec.MsgspecError as error:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(config))
        problem = FieldProblem("cluster", f"this configuration ({error})", f"the fields of {name}: {fields}")
        raise SpecError([problem], source) from None
    if problems := decoded.problems():
        raise SpecError(problems, source)
    return decoded


__all__ = [
    "GROUP",
    "Backend",
    "ClusterConfig",
    "backend_of",
    "connect_fleet",
    "connect_launcher",
    "decode_config",
    "encode_config",
    "installed_backends",
    "load_backend",
]
