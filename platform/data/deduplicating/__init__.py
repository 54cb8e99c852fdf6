"""Feature groups without repeated rows (RecD): their choice, encoding, reading and storage."""
