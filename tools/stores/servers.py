"""The servers, each on loopback and in its own folder; the end of the `with` block removes everything."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

import boto3

from tools.jars import JVM
from tools.ports import free_ports
from tools.stores.fetching import JARS, azurite, fake_gcs, versity

_START_SECONDS = 60.0
# The well-known account of every Azurite installation.
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class ServerError(Exception):
    """A server did not start; contains the end of its log."""


class _Server:
    """Processes with one log, in a folder of their own."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"elastrec-{name}-", dir=folder))
        self._log = self.folder / "log.txt"
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self, command: Sequence[str]) -> None:
        with self._log.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder
                )
            )

    def _serve(self, command: Sequence[str], url: str) -> None:
        """Starts the only process of the server; returns when it answers at a URL, or ends it and raises."""
        try:
            self._start(command)
            self._wait_until_answers(url)
        except BaseException:
            self.close()
            raise

    def _wait_until_answers(self, url: str, wanted: bytes = b"") -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5.0) as answer:
                    if wanted in answer.read():
                        return
            except urllib.error.HTTPError:
                if not wanted:
                    return  # any answer counts, even a refusal
            except OSError:
                pass
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise ServerError(
                    f"{type(self).__name__} did not start: {self._log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.1)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Azure(_Server):
    """Azurite, Microsoft's emulator of blob storage.

    Attributes:
        connection: for AZURE_STORAGE_CONNECTION_STRING.

    Raises:
        ServerError: it did not start.
    """

    def __init__(self) -> None:
        super().__init__("azurite")
        (port,) = free_ports(1)
        self.connection = (
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={_AZURITE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        )
        # Clients are often newer than Azurite; the clients used here need none of its missing features.
        self._serve(
            [str(azurite()), "--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1",
             "--blobPort", str(port), "--location", str(self.folder)],
            f"http://127.0.0.1:{port}/devstoreaccount1",
        )  # fmt: skip


class Gcs(_Server):
    """fake-gcs-server, an emulator of Google Cloud Storage.

    Attributes:
        endpoint: for STORAGE_EMULATOR_HOST.

    Raises:
        ServerError: it did not start.
    """

    def __init__(self) -> None:
        super().__init__("gcs")
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        self._serve(
            [str(fake_gcs()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "filesystem",
             "-filesystem-root", str(self.folder / "objects"), "-public-host", f"127.0.0.1:{port}"],
            f"{self.endpoint}/storage/v1/b?project=test",
        )  # fmt: skip

    def make_bucket(self, name: str) -> None:
        """Creates an empty bucket."""
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=test", json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=10.0):
            pass


class S3(_Server):
    """Versity's S3 gateway, whose objects are files of a folder.

    Attributes:
        endpoint: for AWS_ENDPOINT_URL_S3; environment: for its clients, with the endpoint.

    Raises:
        ServerError: it did not start.
    """

    _ACCESS, _SECRET = "test", "test"

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: of the objects; default: the system's temporary folder."""
        super().__init__("s3", folder)
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_ACCESS_KEY_ID": self._ACCESS,
            "AWS_SECRET_ACCESS_KEY": self._SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        objects = self.folder / "objects"
        objects.mkdir()
        self._serve(
            [str(versity()), "--access", self._ACCESS, "--secret", self._SECRET, "--port", f"127.0.0.1:{port}",
             "--health", "/health", "--quiet", "posix", str(objects)],
            f"{self.endpoint}/health",
        )  # fmt: skip

    def make_bucket(self, name: str) -> None:
        """Creates an empty bucket."""
        boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=self._ACCESS,
            aws_secret_access_key=self._SECRET,
        ).create_bucket(Bucket=name)  # fmt: skip


class Hdfs(_Server):
    """A name node and one data node of Hadoop.

    Attributes:
        address: `host:port` of WebHDFS.

    Raises:
        JarsError: the jars could not be fetched.
        ServerError: a daemon did not start.
    """

    def __init__(self) -> None:
        jars = JARS.fetch()
        super().__init__("hdfs")
        name, web, data, data_web, data_calls = free_ports(5)
        self.address = f"127.0.0.1:{web}"
        configuration = self.folder / "configuration"
        # Hadoop looks for its pages on the class path.
        for pages in ("hdfs", "datanode"):
            (configuration / "webapps" / pages).mkdir(parents=True)
        self._write(configuration / "core-site.xml", {
            "fs.defaultFS": f"hdfs://127.0.0.1:{name}",
            "hadoop.tmp.dir": str(self.folder / "temporary"),
        })  # fmt: skip
        self._write(configuration / "hdfs-site.xml", {
            "dfs.replication": 1,
            "dfs.namenode.name.dir": f"file://{self.folder}/names",
            "dfs.datanode.data.dir": f"file://{self.folder}/blocks",
            "dfs.namenode.http-address": self.address,
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"127.0.0.1:{data_web}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{data_calls}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": 0,
            # Otherwise each close of a file waits 400 ms.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 10,
        })  # fmt: skip
        java = [*JVM, f"-Djava.io.tmpdir={self.folder}", "-cp", f"{configuration}:{jars}/*"]
        daemons = "org.apache.hadoop.hdfs.server"
        try:
            with self._log.open("ab") as log:
                subprocess.run(
                    [*java, f"{daemons}.namenode.NameNode", "-format", "-force", "-nonInteractive"],
                    stdout=log, stderr=log, cwd=self.folder, timeout=_START_SECONDS, check=True,
                )  # fmt: skip
            self._start([*java, f"{daemons}.namenode.NameNode"])
            self._start([*java, f"{daemons}.datanode.DataNode"])
            state = "Hadoop:service=NameNode,name=FSNamesystemState"
            self._wait_until_answers(f"http://{self.address}/jmx?qry={state}", b'"NumLiveDataNodes" : 1')
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _write(file: Path, settings: dict[str, object]) -> None:
        properties = [
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in settings.items()
        ]
        file.write_text(f"<configuration>{''.join(properties)}</configuration>")
