"""The three-stage brain: warm start, plans for running jobs, and what keeps them healthy; formulas and plain values.

Nothing here touches a cluster, MLflow, Airflow, a file or a clock: profiles in, plans out. Who reads profiles and who
applies plans lives elsewhere, so that a simulator and a real cluster drive the same code. torch must never be
imported here; scipy and pymoo are, so a job's own processes do not import this room.
"""
