"""Features: plans from the job file, reading of raw columns, steps, and statistics fitted before training.

Steps are numpy operations on whole columns, independent of files and batches: `reading` runs them on windows of a log,
and the exported model on the rows that it scores.
"""
