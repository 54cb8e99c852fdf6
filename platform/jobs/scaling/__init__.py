"""Rounds of scaling over running jobs: profiles are read, plans are handed over, MLflow is told why.

What to do is decided in `elastrec.platform.scaling`.
"""
