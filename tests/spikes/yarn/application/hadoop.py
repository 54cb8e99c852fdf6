"""Hadoop's own Java clients of ResourceManager and NodeManagers, loaded into this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jpype

_LOG4J = Path(__file__).with_name("log4j.properties")
_API, _CLIENT = "org.apache.hadoop.yarn.api.records", "org.apache.hadoop.yarn.client.api"


def start_java(jars: Path) -> None:
    """Starts the JVM, once per process.

    Args:
        jars: folder of the jars.
    """
    # Without -Xrs Java takes SIGTERM and ends the process, whatever Python's handler says.
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xrs")
    log4j = f"-Dlog4j.configuration={_LOG4J.as_uri()}"
    jpype.startJVM(*options, log4j, classpath=[f"{jars}/*"], convertStrings=True)


def configuration(folder: Path) -> Any:
    """Of a client, from the folder of a cluster's configuration files."""
    conf = jpype.JClass("org.apache.hadoop.yarn.conf.YarnConfiguration")()
    for name in ("core-site.xml", "yarn-site.xml"):
        conf.addResource(jpype.JClass("org.apache.hadoop.fs.Path")((folder / name).as_uri()))
    return conf


class Hadoop:
    """Clients that are running, for the ApplicationMaster that this process is."""

    def __init__(self, conf: Any) -> None:
        self.manager = jpype.JClass(f"{_CLIENT}.AMRMClient").createAMRMClient()
        self.nodes = jpype.JClass(f"{_CLIENT}.NMClient").createNMClient()
        # Else the containers of an ApplicationMaster that leaves are ended with it.
        self.nodes.cleanupRunningContainersOnStop(False)
        for client in (self.manager, self.nodes):
            client.init(conf)
            client.start()
        self._records = {
            name: jpype.JClass(f"{_API}.{name}")
            for name in (
                "ContainerLaunchContext", "ContainerUpdateType", "FinalApplicationStatus", "LocalResource",
                "LocalResourceType", "LocalResourceVisibility", "Priority", "Resource", "UpdateContainerRequest", "URL",
            )
        }  # fmt: skip
        self._request = jpype.JClass(f"{_CLIENT}.AMRMClient$ContainerRequest")
        self._path = jpype.JClass("org.apache.hadoop.fs.Path")

    def resource(self, memory_mb: int, cores: int) -> Any:
        """A size in YARN's units."""
        return self._records["Resource"].newInstance(jpype.JLong(memory_mb), cores)

    def request(self, request_id: int, memory_mb: int, cores: int, priority: int) -> Any:
        """For one container, on any node."""
        builder = self._request.newBuilder().capability(self.resource(memory_mb, cores))
        builder = builder.priority(self._records["Priority"].newInstance(priority)).relaxLocality(True)
        return builder.allocationRequestId(request_id).build()

    def update(self, container: Any, *, increase: bool, memory_mb: int, cores: int) -> None:
        """Asks for another size of a running container."""
        kinds = self._records["ContainerUpdateType"]
        kind = kinds.INCREASE_RESOURCE if increase else kinds.DECREASE_RESOURCE
        request = self._records["UpdateContainerRequest"].newInstance(
            container.getVersion(), container.getId(), kind, self.resource(memory_mb, cores), None
        )
        self.manager.requestContainerUpdate(container, request)

    def is_increase(self, updated: Any) -> bool:
        """Of an `UpdatedContainer`."""
        return bool(updated.getUpdateType() == self._records["ContainerUpdateType"].INCREASE_RESOURCE)

    def launch_context(self, command: str, environment: dict[str, str], files: dict[str, str]) -> Any:
        """What a node needs to start a process.

        Args:
            files: shared paths by the name in the folder of the container.
        """
        resources, variables, commands = (
            jpype.java.util.HashMap(),
            jpype.java.util.HashMap(),
            jpype.java.util.ArrayList(),
        )
        for name, path in files.items():
            resources.put(name, self._local_resource(path))
        for name, value in environment.items():
            variables.put(name, value)
        commands.add(command)
        return self._records["ContainerLaunchContext"].newInstance(resources, variables, commands, None, None, None)

    def finish(self, *, succeeded: bool, message: str) -> None:
        """The application is over; its containers are ended, and no further attempt is made."""
        kinds = self._records["FinalApplicationStatus"]
        kind = kinds.SUCCEEDED if succeeded else kinds.FAILED
        self.manager.unregisterApplicationMaster(kind, message, "")

    def _local_resource(self, path: str) -> Any:
        file = jpype.java.io.File(path)
        return self._records["LocalResource"].newInstance(
            self._records["URL"].fromPath(self._path(f"file://{path}")),
            self._records["LocalResourceType"].FILE,
            self._records["LocalResourceVisibility"].APPLICATION,
            file.length(),
            file.lastModified(),
        )
