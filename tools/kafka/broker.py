"""Broker: one Kafka node (KRaft, broker and controller in one process) on loopback, in a folder of its own.

The jars come from Maven Central once and stay in the user's cache folder, named after the dependency file. Needs Java
17 or above and Maven.
"""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from tools.jars import Jars, JarsError
from tools.ports import free_ports

_JARS = Jars("kafka", Path(__file__).with_name("pom.xml"))
_START_SECONDS = 60.0
# Settings for a single node: no replication, and short waits of clients for a broker that has ended.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=1000
"""


class BrokerError(Exception):
    """The broker cannot be started here; the message names what is missing."""


def missing_program() -> str:
    """The missing program, `java` or `mvn`; empty if a broker can be started."""
    return _JARS.missing_program()


def fetch_jars() -> Path:
    """The folder of the broker's jars; Maven fetches them (44 MB) if they are missing.

    Raises:
        BrokerError: Maven failed; contains its last lines.
    """
    try:
        return _JARS.fetch()
    except JarsError as error:
        raise BrokerError(str(error)) from None


class Broker:
    """A running broker; the end of the `with` block or `close` removes everything.

    Attributes:
        servers: its address, `127.0.0.1:PORT`.

    Raises:
        BrokerError: it did not start; contains the last lines of its log.
    """

    def __init__(self) -> None:
        jars = fetch_jars()
        self._folder = Path(tempfile.mkdtemp(prefix="elastrec-kafka-"))
        port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        properties = self._folder / "server.properties"
        properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=self._folder))
        self._java = [
            "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            f"-Dkafka.logs.dir={self._folder}", f"-Djava.io.tmpdir={self._folder}", "-cp", f"{jars}/*",
        ]  # fmt: skip
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._format(cluster, properties)
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the process again after `kill`; returns when it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._folder / "server.properties")],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        # The port is opened last, when the broker has joined its controller.
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BrokerError(f"Kafka did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process, as a power failure does; its data are kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _accepts(self) -> bool:
        host, _, port = self.servers.partition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _format(self, cluster: str, properties: Path) -> None:
        # The id may begin with a hyphen, which would make it an option.
        command = [*self._java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_SECONDS, cwd=self._folder)
        if done.returncode:
            raise BrokerError(f"Kafka's storage cannot be made: {(done.stdout + done.stderr)[-2000:]}")
