"""A real Kafka broker on this machine, from its published jars: for tests and trials, never for users' data."""
