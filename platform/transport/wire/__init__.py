"""How frames travel: connections, the token, lent memory, a loop, a pool of threads. Nothing here knows a message."""
