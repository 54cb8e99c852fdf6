"""The one wire: typed messages, with arrays or without, as frames on one port; token, optional TLS, deadlines.

Here belong the messages that more than one room speaks and the machinery that carries them. Nothing here knows
what a message means, and nothing is ever unpickled.
"""

from elastrec.platform.transport.client import ArrayStream, RpcClient
from elastrec.platform.transport.security import TlsConfig, new_token
from elastrec.platform.transport.server import ArrayHandler, Handler, RpcServer, connections_for, end_process
from elastrec.platform.transport.wire.loop import StreamLoop

__all__ = [
    "ArrayHandler",
    "ArrayStream",
    "Handler",
    "RpcClient",
    "RpcServer",
    "StreamLoop",
    "TlsConfig",
    "connections_for",
    "end_process",
    "new_token",
]
