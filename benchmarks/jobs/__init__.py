"""Benchmarks of a job's costs beside its training: calls, the master, start-up, scaling out."""
