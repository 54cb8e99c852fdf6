"""The discrete-event cluster: what one machine cannot hold, run by the same policies as the real one.

Every number that it yields is simulated, and says so. Nothing here touches a real cluster, MLflow, Airflow or the
wall clock; equal seeds give equal results.
"""
