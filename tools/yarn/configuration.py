"""The configuration files of a small YARN cluster on loopback: one ResourceManager, several NodeManagers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

STEP_MB = 64
"""Memory is granted in multiples of it."""
MOST_MB = 2048
"""The largest container."""
NODE_MB, NODE_CORES = 4096, 8
SMALL_QUEUE = "small"
"""A queue with at most a tenth of the cluster."""
NODE_EXPIRY_SECONDS = 6.0
"""Time without a heartbeat after which a node counts as lost."""

_LOG4J = """\
log4j.rootLogger=WARN,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


def client_settings(resource_manager: dict[str, int]) -> dict[str, object]:
    """The configuration of a client of the cluster.

    Args:
        resource_manager: port by service: `address`, `scheduler.address`, `resource-tracker.address`,
            `admin.address`, `webapp.address`.
    """
    addresses = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in resource_manager.items()}
    return addresses | {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        # The default is 30 s between two attempts to reach a restarted ResourceManager.
        "yarn.resourcemanager.connect.retry-interval.ms": 500,
    }


def resource_manager_settings(folder: Path) -> dict[str, object]:
    """The configuration of the ResourceManager alone; it keeps its state in `folder`."""
    return {
        "yarn.resourcemanager.scheduler.class": (
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
        ),
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
        "yarn.nm.liveness-monitor.expiry-interval-ms": int(NODE_EXPIRY_SECONDS * 1000),
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": 500,
        "yarn.am.liveness-monitor.expiry-interval-ms": 20_000,
        "yarn.resourcemanager.am.max-attempts": 10,
        "yarn.scheduler.minimum-allocation-mb": STEP_MB,
        "yarn.scheduler.maximum-allocation-mb": MOST_MB,
        "yarn.scheduler.maximum-allocation-vcores": NODE_CORES,
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": (
            "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
        ),
        "yarn.resourcemanager.fs.state-store.uri": (folder / "state").as_uri(),
        # The default is `/tmp/hadoop-yarn-USER`, independently of the JVM's temporary folder.
        "yarn.node-attribute.fs-store.root-dir": (folder / "node-attributes").as_uri(),
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": 500,
        "yarn.webapp.ui2.enable": "false",
    }


def node_settings(folder: Path, number: int, ports: list[int]) -> dict[str, object]:
    """The configuration of one NodeManager; the files of its containers are in `folder`.

    Args:
        number: each node has an address of its own, as the scheduler distinguishes nodes by their host. (With
            `yarn.scheduler.include-port-in-node-name` it would not, but would never grant a container more, either.)
        ports: five.
    """
    host = f"127.0.0.{number + 2}"
    services = ("address", "localizer.address", "webapp.address", "collector-service.address", "amrmproxy.address")
    addresses = {f"yarn.nodemanager.{name}": f"{host}:{port}" for name, port in zip(services, ports, strict=True)}
    return addresses | {
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.bind-host": host,
        "yarn.nodemanager.resource.cpu-vcores": NODE_CORES,
        "yarn.nodemanager.resource.memory-mb": NODE_MB,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "true",
        # With the default executor, `true` only turns the check off.
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.container-monitor.interval-ms": 300,
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": 2000,
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.disk-health-checker.enable": "false",
        # Checked once at the start nevertheless: no container starts on a disk that is fuller than 90 %, the default.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH,LANG",
    }


def scheduler_settings() -> dict[str, object]:
    """Two queues."""
    root = "yarn.scheduler.capacity"
    return {
        f"{root}.root.queues": f"default,{SMALL_QUEUE}",
        f"{root}.root.default.capacity": 90,
        f"{root}.root.default.maximum-capacity": 100,
        f"{root}.root.{SMALL_QUEUE}.capacity": 10,
        f"{root}.root.{SMALL_QUEUE}.maximum-capacity": 10,
        f"{root}.root.{SMALL_QUEUE}.user-limit-factor": 10,
        f"{root}.maximum-am-resource-percent": 0.9,
        # The default calculator counts memory alone.
        f"{root}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        f"{root}.node-locality-delay": -1,
    }


def write_folder(folder: Path, yarn: dict[str, object], scratch: Path, user: str) -> Path:
    """A configuration folder, to be put first on a class path."""
    folder.mkdir(parents=True, exist_ok=True)
    core = {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(scratch),
        # Otherwise a REST request without a user runs as `dr.who`.
        "hadoop.http.staticuser.user": user,
    }
    for name, settings in (("core-site", core), ("yarn-site", yarn), ("capacity-scheduler", scheduler_settings())):
        (folder / f"{name}.xml").write_text(_xml(settings))
    (folder / "log4j.properties").write_text(_LOG4J)
    return folder


def _xml(settings: Mapping[str, object]) -> str:
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in settings.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])
