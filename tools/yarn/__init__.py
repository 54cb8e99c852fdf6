"""Real YARN daemons on this machine, from their published jars: for tests and trials, never for users' jobs."""
