"""A fleet in this process, as an unmanaged ApplicationMaster, which YARN does not start itself."""

from __future__ import annotations

import time
from pathlib import Path

import jpype

from tests.spikes.yarn.application.fleet import YarnFleet
from tests.spikes.yarn.application.hadoop import Hadoop, configuration
from tests.spikes.yarn.application.launching import Site
from tests.spikes.yarn.rest import Rest

_SECONDS = 60.0


def unmanaged_fleet(conf_folder: Path, rest: Rest, site: Site, queue: str) -> tuple[YarnFleet, str]:
    """A registered ApplicationMaster, and its application's id. Java runs already; once per process and user."""
    application = rest.new_application()
    rest.call(
        "POST", "/apps",
        {
            "application-id": application, "application-name": "unmanaged", "queue": queue, "unmanaged-AM": True,
            "am-container-spec": {}, "resource": {"memory": 64, "vCores": 1},
        },
    )  # fmt: skip
    deadline = time.monotonic() + _SECONDS
    while rest.application(application)["state"] != "ACCEPTED":
        assert time.monotonic() < deadline, rest.application(application)
        time.sleep(0.05)
    conf = configuration(conf_folder)
    client = jpype.JClass("org.apache.hadoop.yarn.client.api.YarnClient").createYarnClient()
    client.init(conf)
    client.start()
    try:
        found = None
        id_class = jpype.JClass("org.apache.hadoop.yarn.api.records.ApplicationId")
        while found is None:
            found = client.getAMRMToken(id_class.fromString(application))
            assert time.monotonic() < deadline
    finally:
        client.stop()
    jpype.JClass("org.apache.hadoop.security.UserGroupInformation").getCurrentUser().addToken(found)
    return YarnFleet(Hadoop(conf), rest, site, "127.0.0.1:1"), application
