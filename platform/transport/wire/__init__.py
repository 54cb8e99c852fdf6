"""The transport of frames: connections, token, lent memory, a loop, a thread pool. It does not interpret messages."""
