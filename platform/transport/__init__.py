"""The one RPC stack: typed messages over Arrow Flight, arrays over streams; token, optional TLS, deadlines.

Here belong the messages that more than one room speaks and the machinery that carries them. Nothing here knows
what a message means, and nothing is ever unpickled.
"""

from elastrec.platform.transport.client import RpcClient
from elastrec.platform.transport.security import TlsConfig, new_token
from elastrec.platform.transport.server import ArrayHandler, Handler, RpcServer, end_process
from elastrec.platform.transport.streams import ArrayStream

__all__ = ["ArrayHandler", "ArrayStream", "Handler", "RpcClient", "RpcServer", "TlsConfig", "end_process", "new_token"]
