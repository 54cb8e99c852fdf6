"""Benchmarks of reading logs, and of the savings by clustering and deduplication."""
