"""The environment of a caller: the cluster, the tracking server, and the folder of the platform's own files."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from elastrec.platform.clusters import ClusterConfig, Launcher, connect_launcher, decode_config
from elastrec.platform.clusters.local import find_agent, start_agent
from elastrec.platform.clusters.local.absent import AbsentLauncher
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.specs.environment import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from elastrec.platform.specs.errors import MISSING, ClusterError, FieldProblem, SpecError
from elastrec.platform.transport import TlsConfig
from elastrec.platform.transport.security import JobSecret

HOME_VARIABLE = "ELASTREC_HOME"
TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
CLUSTER_VARIABLE = "ELASTREC_CLUSTER"
TLS_VARIABLE = "ELASTREC_TLS"
WORK_VARIABLE = "ELASTREC_WORK_URI"
DEFAULT_STORE = "checkpoints"
"""Where jobs are looked for that the cluster no longer has, unless the caller names a store."""


class NoAgentError(ClusterError):
    """The local cluster's node agent does not run."""


@dataclass(frozen=True)
class Platform:
    """The environment in which the steps of a job are executed.

    Attributes:
        work_uri: folder or URI of manifests, and of checkpoints if the job file's store is relative.
        base_folder: folder of relative data paths in job files.
        ui_url: address of MLflow for browsers; empty: the tracking URI itself if it is HTTP.
        known_secrets: secrets of jobs that are already known, by the uid of their master's pod.
    """

    launcher: Launcher
    cluster_config: ClusterConfig = field(repr=False)
    tracking_uri: str = field(repr=False)
    work_uri: str
    base_folder: Path
    ui_url: str = ""
    known_secrets: dict[str, JobSecret] = field(repr=False, compare=False, default_factory=dict)

    @staticmethod
    def connect(
        cluster_config: ClusterConfig,
        tracking_uri: str,
        work_uri: str,
        *,
        ui_url: str = "",
        base_folder: Path | None = None,
    ) -> Platform:
        """A platform on an existing cluster."""
        launcher = connect_launcher(cluster_config)
        return Platform(launcher, cluster_config, tracking_uri, work_uri, base_folder or Path.cwd(), ui_url)

    @staticmethod
    def from_environment(*, start: bool = True, patience_seconds: float = 15.0) -> Platform:
        """The platform of this user on this machine.

        `ELASTREC_HOME` (default `~/.elastrec`) holds the local node agent's state and the platform's files;
        `ELASTREC_CLUSTER` names the JSON file of another cluster; `ELASTREC_WORK_URI` is the folder of manifests, logs
        and checkpoints with a relative store (default: a folder in the home folder); `MLFLOW_TRACKING_URI` the tracking
        server (default: an SQLite file in the home folder); `ELASTREC_TLS` a folder with ca.pem, tls.crt and tls.key
        for the local node agent.

        Args:
            start: whether to start the local node agent if none runs.
            patience_seconds: how long an agent that runs is waited for if none is to be started.

        Raises:
            ClusterError: no node agent runs and `start` is false (NoAgentError), or it cannot be started.
            SpecError: the file that `ELASTREC_CLUSTER` or the folder that `ELASTREC_TLS` names cannot be read.
        """
        home, tls = home_folder(), tls_folder()
        work, tracking = work_uri(), tracking_uri()
        config_file = os.environ.get(CLUSTER_VARIABLE)
        if config_file:
            config = read_cluster_config(Path(config_file))
        else:
            state = home / "agent"
            cluster = start_agent(state, tls_folder=tls) if start else find_agent(state, tls, patience_seconds)
            if cluster is None:
                raise NoAgentError(f"no node agent runs for {home}; start one with `elastrec agent start`")
            config = cluster.config
        return Platform.connect(config, tracking, work)

    @staticmethod
    def for_looking() -> Platform:
        """Like `from_environment`, but starts nothing: if no node agent runs, the cluster is an `AbsentLauncher`."""
        try:
            return Platform.from_environment(start=False)
        except NoAgentError:
            home = home_folder()
            config = LocalConfig(address="", token="")
            return Platform(AbsentLauncher(home / "agent"), config, tracking_uri(), work_uri(), Path.cwd())


def home_folder() -> Path:
    """The user's folder, which is created with access for its owner only.

    Raises:
        SpecError: it cannot be created or written by this user.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    try:
        return _make_folder((Path(chosen) if chosen else Path.home() / ".elastrec").absolute())
    except RuntimeError:  # a user without a home, as in a container
        missing = FieldProblem(
            HOME_VARIABLE, MISSING, "a folder, because this user has no home", "name one that this user can write"
        )
        raise SpecError([missing], "the environment") from None


def work_folder() -> Path:
    """The folder of the platform's files on this machine, in the home folder.

    Raises:
        SpecError: it cannot be created or written by this user.
    """
    return _make_folder(home_folder() / "work")


def work_uri() -> str:
    """The folder of files that jobs need in addition to their data: `ELASTREC_WORK_URI`, or a folder in the home
    folder."""
    return os.environ.get(WORK_VARIABLE) or str(work_folder())


def _make_folder(folder: Path) -> Path:
    # An existing home may be open to others; new files and folders in it are not.
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        problem = _why_not_usable(folder)
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        allowed = "a folder that can be made and written"
        wrong = FieldProblem(HOME_VARIABLE, f"{str(folder)!r} ({problem})", allowed, "correct the variable")
        raise SpecError([wrong], "the environment")
    return folder


def _why_not_usable(folder: Path) -> str:
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return ""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    found = folder.stat()
    return f"belongs to user {found.st_uid}, with the mode {stat.filemode(found.st_mode)}"


def tracking_uri() -> str:
    """MLflow's address: `MLFLOW_TRACKING_URI`, or an SQLite file in the home folder."""
    return os.environ.get(TRACKING_VARIABLE) or f"sqlite:///{home_folder() / 'mlflow.db'}"


def tls_folder() -> Path | None:
    """The checked folder in `ELASTREC_TLS`; None if TLS is not configured.

    Raises:
        SpecError: files are missing or cannot be read.
    """
    named = os.environ.get(TLS_VARIABLE)
    return checked_tls_folder(Path(named), TLS_VARIABLE, (CA_FILE, CERTIFICATE_FILE, KEY_FILE)) if named else None


def checked_tls_folder(folder: Path, setting: str, names: tuple[str, ...]) -> Path:
    """The absolute path of a folder with TLS material.

    Args:
        setting: the name of the setting, for messages.
        names: required files; a client needs only the root certificate.

    Raises:
        SpecError: a file is missing or cannot be read.
    """
    folder = folder.absolute()
    try:
        problem = ", ".join(f"no {name}" for name in names if not (folder / name).is_file())
        if not problem:
            TlsConfig.from_folder(folder)
    except OSError as error:
        problem = str(error)
    if problem:
        wrong = FieldProblem(setting, f"{str(folder)!r} ({problem})", f"a folder with {', '.join(names)} (PEM)")
        raise SpecError([wrong], "the TLS settings")
    return folder


def read_cluster_config(file: Path, setting: str = CLUSTER_VARIABLE) -> ClusterConfig:
    """A cluster's JSON file.

    Args:
        setting: the name of the setting, for messages.

    Raises:
        SpecError: the file cannot be read or contains something else.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        problem = FieldProblem(setting, f"{str(file)!r} ({error.strerror})", "a readable cluster file (JSON)")
        raise SpecError([problem], str(file)) from None
    return decode_config(text, f"{file} ({setting})")
