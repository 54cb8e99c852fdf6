"""Common code of benchmarks: figures and their page, child processes, jobs, generated logs."""
