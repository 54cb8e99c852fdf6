"""The program of a job's first container: the job's master, with the fleet of its application.

`python -m tests.spikes.yarn.application.application_master`. If an attempt ends without unregistering, YARN starts
another one, and the containers keep running. An attempt unregisters if its job is over or would fail again.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from elastrec.platform.clusters import decode_config
from elastrec.platform.clusters.pods import BAD_INPUT_EXIT_CODE
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.transport.logs import configure_logging
from tests.spikes.yarn.application.container import surroundings
from tests.spikes.yarn.application.fleet import YarnFleet
from tests.spikes.yarn.application.hadoop import Hadoop, configuration, start_java
from tests.spikes.yarn.application.launching import Site
from tests.spikes.yarn.backend import YarnConfig
from tests.spikes.yarn.rest import Rest

_FLEETS: list[YarnFleet] = []


def this_fleet() -> YarnFleet | None:
    """Of the application whose master this process is."""
    return _FLEETS[0] if _FLEETS else None


def site_of(config: YarnConfig) -> Site:
    """Of this attempt, whose number is in its container's id."""
    attempt = int(os.environ["CONTAINER_ID"].split("_")[-2])
    return Site(
        attempt=attempt,
        staging=Path(os.environ["ELASTREC_STAGING"]),
        step_mb=config.step_mb,
        command=(config.python, "-m", "tests.spikes.yarn.application.container"),
        environment=config.environment,
        modules=config.modules,
    )


def main() -> int:
    """Returns the exit code."""
    configure_logging()
    # The journal outlives an attempt where the next one runs on the same node, and only there.
    os.environ.update(surroundings(Path(os.environ["LOCAL_DIRS"].split(",")[0]) / "master"))
    config = decode_config((Path(os.environ[environment.FILES]) / environment.CLUSTER_FILE).read_text(), "cluster.json")
    assert isinstance(config, YarnConfig)
    start_java(Path(config.jars))
    address = f"{os.environ[environment.HOST]}:{os.environ[environment.PORT]}"
    hadoop, rest = Hadoop(configuration(Path(config.configuration))), Rest(config.url, config.user)
    fleet = YarnFleet(hadoop, rest, site_of(config), address)
    _FLEETS.append(fleet)

    from elastrec.platform.master.__main__ import run

    try:
        code = run()
    except SpecError as error:
        print(error, file=sys.stderr)
        code = BAD_INPUT_EXIT_CODE
    if code in (0, BAD_INPUT_EXIT_CODE):
        fleet.finish(succeeded=code == 0, message=f"the master has ended with {code}")
    return code


if __name__ == "__main__":
    # As `__main__` this module would be another one than that of the entry point.
    from tests.spikes.yarn.application import application_master

    exit_code = 1
    try:
        exit_code = application_master.main()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Neither Java's threads nor a history's keep a finished master alive.
    os._exit(exit_code)
