"""Rounds of scaling over running jobs: reads profiles, sends plans to masters, logs the reasons to MLflow.

Decisions are made in `elastrec.platform.scaling`.
"""
