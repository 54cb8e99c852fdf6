"""Child processes of benchmarks: real processes on both sides of a figure, which get their orders line by line."""
