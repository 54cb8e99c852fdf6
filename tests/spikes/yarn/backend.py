"""The backend `yarn-spike`, as another package would offer it (see `entry_point`)."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.clusters import Backend, ClusterConfig
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.specs.errors import ClusterError

NAME = "yarn-spike"


class YarnConfig(ClusterConfig, frozen=True, kw_only=True, tag=NAME):
    """How to reach a cluster.

    Attributes:
        url: of the ResourceManager's REST API.
        user: whose applications these are.
        configuration: folder with `core-site.xml` and `yarn-site.xml`, which every machine sees.
        jars: folder of Hadoop's clients, which every machine sees.
        staging: folder that every machine sees; each application has one in it.
        step_mb: of the scheduler: memory is granted in multiples of it. The REST API does not give it.
        python: interpreter of all containers.
        environment: variables of all containers.
        modules: module to run instead of another one, by that one's name.
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
