"""How a node agent is reached."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.backends import ClusterConfig
from elastrec.platform.specs.errors import FieldProblem
from elastrec.platform.transport.security import TlsConfig, new_token


class LocalConfig(ClusterConfig, frozen=True, kw_only=True, tag="local"):
    """Of the local cluster; holds a secret.

    Attributes:
        address: `host:port` of the node agent.
        token: sent with every call.
        tls: PEM text of the root to trust; empty for plain TCP.
    """

    address: str
    token: str
    tls: str = ""

    def problems(self) -> list[FieldProblem]:
        """A token that no connection can carry."""
        if self.token.isascii() and self.token.isprintable():
            return super().problems()
        return [*super().problems(), FieldProblem("token", "this one", "printable ASCII characters", "copy it again")]

    @property
    def job_tls(self) -> bool:
        """Where the agent speaks TLS."""
        return bool(self.tls)

    def for_master(self) -> LocalConfig:
        """With a token of the master's own: the agent finds it in the master's pod, and takes it for that job alone."""
        return msgspec.structs.replace(self, token=new_token())

    @property
    def client_tls(self) -> TlsConfig | None:
        """For a client of the agent."""
        return TlsConfig(root_pem=self.tls.encode()) if self.tls else None
