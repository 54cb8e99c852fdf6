"""Rounds of scaling over running jobs: reads profiles, hands plans over, logs the reasons to MLflow.

What to do is decided in `elastrec.platform.scaling`.
"""
