"""Transport: typed messages, with or without arrays, as frames on one port; token, optional TLS, deadlines.

This room contains the messages that several rooms use, and the code that sends them. It does not interpret messages,
and never unpickles anything.
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
