"""Features: plans out of the job file, raw columns read as a plan asks, steps, figures fitted before training.

Steps are numpy over whole columns and know neither files nor batches: `reading` runs them on windows of a log, and the
exported model on the rows that it scores.
"""
