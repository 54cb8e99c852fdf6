"""Servers: etcd, the API server, the controller manager and the scheduler on loopback, in a folder of their own.

Ready in about 3 s, 500 MB together. Every component, every node and the administrator has a token of its own, with the
rights that it has in a real cluster: RBAC, and for nodes the Node authorizer with NodeRestriction.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tools.ports import free_ports

_START_SECONDS = 60.0
_MEMORY_FOLDER = Path("/dev/shm")
_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


class ServersError(Exception):
    """A server did not start; contains the last lines of its log."""


class Servers:
    """A running control plane; the end of the `with` block or `close` removes everything.

    Args:
        programs: folder of the programs (`build`).
        nodes: names of nodes; each has a token, none is registered.
        flags: further flags by program.

    Attributes:
        url: of the API server.
        authority: file with the certificate to trust.
        tokens: by user: `admin`, and the nodes' names.

    Raises:
        ServersError: a server did not start.
    """

    def __init__(
        self, programs: Path, nodes: Sequence[str] = (), flags: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        in_memory = str(_MEMORY_FOLDER) if _MEMORY_FOLDER.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="elastrec-kubernetes-", dir=in_memory))
        self._programs, self._flags = programs, flags or {}
        etcd, peers, self._port, controllers, scheduler = free_ports(5)
        self.url = f"https://127.0.0.1:{self._port}"
        self.authority = self.folder / "pki" / "apiserver.crt"
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "controllers", "scheduler", *nodes)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments = {
            "etcd": self._etcd(etcd, peers),
            "kube-apiserver": self._api_server(etcd),
            "kube-controller-manager": [
                *self._component("controllers", controllers),
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
                f"--root-ca-file={self.authority}",
            ],
            "kube-scheduler": self._component("scheduler", scheduler),
        }
        try:
            self._write_secrets(nodes)
            self.start("etcd")
            self.start("kube-apiserver")
            for name in ("controllers", "scheduler"):
                self.write_kubeconfig(name)
            self.start("kube-controller-manager")
            self.start("kube-scheduler")
        except BaseException:
            self.close()
            raise

    def start(self, component: str) -> None:
        """Starts or restarts a program; the API server answers when this returns."""
        with self._log(component).open("ab") as log:
            self._processes[component] = subprocess.Popen(
                [str(self._programs / component), *self._arguments[component], *self._flags.get(component, ())],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while component == "kube-apiserver" and not self.is_ready():
            if self._processes[component].poll() is not None or time.monotonic() > deadline:
                raise ServersError(f"{component}: {self._log(component).read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self, component: str) -> None:
        """Kills a program, as a power failure does."""
        process = self._processes.pop(component, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def is_ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        try:
            trusted = ssl.create_default_context(cafile=str(self.authority))
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2.0, context=trusted) as answer:
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

    def write_kubeconfig(self, user: str) -> Path:
        """A kubeconfig file with the rights of this user."""
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [
                {"name": "local", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}
            ],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
        }
        file = self.folder / f"{user}.kubeconfig"
        file.write_text(json.dumps(body))
        return file

    def close(self) -> None:
        """Ends the programs and removes their folder."""
        for component in reversed(_COMPONENTS):
            self.kill(component)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log(self, component: str) -> Path:
        return self.folder / f"{component}.log"

    def _write_secrets(self, nodes: Sequence[str]) -> None:
        key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "service-accounts.key").write_bytes(key)
        users = [
            f"{self.tokens['admin']},admin,1,system:masters",
            f"{self.tokens['controllers']},system:kube-controller-manager,2",
            f"{self.tokens['scheduler']},system:kube-scheduler,3",
            *(f"{self.tokens[node]},system:node:{node},{node},system:nodes" for node in nodes),
        ]
        (self.folder / "tokens.csv").write_text("\n".join(users) + "\n")

    def _etcd(self, port: int, peers: int) -> list[str]:
        return [
            "--name=etcd", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls=http://127.0.0.1:{port}", f"--advertise-client-urls=http://127.0.0.1:{port}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=etcd=http://127.0.0.1:{peers}",
        ]  # fmt: skip

    def _api_server(self, etcd: int) -> list[str]:
        key = self.folder / "service-accounts.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}", f"--cert-dir={self.folder / 'pki'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--endpoint-reconciler-type=none",
            # Names of nodes are not names of hosts.
            "--kubelet-preferred-address-types=InternalIP",
            "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}",
        ]  # fmt: skip

    def _component(self, user: str, port: int) -> list[str]:
        config = self.folder / f"{user}.kubeconfig"
        return [
            f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={self.folder / f'{user}-pki'}",
            "--leader-elect=false",
        ]  # fmt: skip
