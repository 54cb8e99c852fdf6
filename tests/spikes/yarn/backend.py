"""The backend `yarn-spike`, as another package would offer it (see `entry_point`)."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.clusters import Backend, ClusterConfig
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.specs.errors import ClusterError

NAME = "yarn-spike"


class YarnConfig(ClusterConfig, frozen=True, kw_only=True, tag=NAME):
    """The addresses and settings of a cluster.

    Attributes:
        url: of the ResourceManager's REST API.
        user: owner of the applications.
        configuration: shared folder with `core-site.xml` and `yarn-site.xml`.
        jars: shared folder with Hadoop's clients.
        staging: shared folder; each application has a subfolder.
        step_mb: granted memory is a multiple of it, as configured in the scheduler; the REST API does not return it.
        python: interpreter of all containers.
        environment: variables of all containers.
        modules: replacement modules, by the name of the replaced module.
    """

    url: str
    user: str
    configuration: str
    jars: str
    staging: str
    step_mb: int
    python: str
    environment: dict[str, str] = {}
    modules: dict[str, str] = {}


def _launcher(config: YarnConfig) -> object:
    from tests.spikes.yarn.launcher import YarnLauncher

    return YarnLauncher(config)


def _fleet(config: YarnConfig, job: str) -> Fleet:
    from tests.spikes.yarn.application.application_master import this_fleet

    found = this_fleet()
    if found is None:
        raise ClusterError(f"the pods of {job} belong to its ApplicationMaster; this process is none")
    return found


BACKEND = Backend(config=YarnConfig, launcher=_launcher, fleet=_fleet)


def entry_point(folder: Path) -> Path:
    """A folder that, on `PYTHONPATH`, makes the backend known as an installed package does."""
    info = folder / "elastrec_yarn_spike-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastrec-yarn-spike\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[elastrec.clusters]\n{NAME} = tests.spikes.yarn.backend:BACKEND\n")
    return folder
