"""Parameter servers: speed, memory, many of them side by side, records."""
