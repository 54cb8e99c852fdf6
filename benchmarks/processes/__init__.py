"""Child processes of benchmarks: real processes on both sides of a figure, told what to do line by line."""
