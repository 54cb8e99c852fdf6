"""Automatic scaling: warm start, plans for running jobs, and protection from out-of-memory; formulas and values.

This room takes profiles and returns plans. It does not access a cluster, MLflow, Airflow, files or a clock. Other rooms
read profiles and apply plans, so that the simulator and real clusters use the same code. torch must never be imported
here; scipy and pymoo are, so a job's own processes do not import this room.
"""
