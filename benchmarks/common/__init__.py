"""What benchmarks share: figures and their page, child processes, jobs of their own, generated logs."""
