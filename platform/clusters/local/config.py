"""The configuration for reaching a node agent."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.backends import ClusterConfig
from elastrec.platform.specs.errors import FieldProblem
from elastrec.platform.transport.security import TlsConfig, new_token


class LocalConfig(ClusterConfig, frozen=True, kw_only=True, tag="local"):
    """The configuration of the local cluster; contains a secret.

    Attributes:
        address: `host:port` of the node agent.
        token: sent with every call.
        tls: PEM text of the root to trust; empty for plain TCP.
    """

    address: str
    token: str
    tls: str = ""

    def problems(self) -> list[FieldProblem]:
        """The problems of the configuration, such as a token that cannot be sent."""
        if self.token.isascii() and self.token.isprintable():
            return super().problems()
        return [*super().problems(), FieldProblem("token", "this one", "printable ASCII characters", "copy it again")]

    @property
    def job_tls(self) -> bool:
        """Whether jobs use TLS, which they do if the agent uses it."""
        return bool(self.tls)

    def for_master(self) -> LocalConfig:
        """The configuration with a token of the master: the agent reads it from the master's pod, and accepts it only
        for that job."""
        return msgspec.structs.replace(self, token=new_token())

    @property
    def client_tls(self) -> TlsConfig | None:
        """TLS settings for a client of the agent."""
        return TlsConfig(root_pem=self.tls.encode()) if self.tls else None
