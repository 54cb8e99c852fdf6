"""Child processes of benchmarks, which get requests line by line."""
