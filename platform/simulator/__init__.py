"""A discrete-event simulation of large clusters, with the same policies as real ones.

All of its results are marked as simulated. It does not access a real cluster, MLflow, Airflow or the wall clock; equal
seeds give equal results.
"""
