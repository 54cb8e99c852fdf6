"""Points on their way from a job's master to MLflow: batches, retries, and a file for those that wait.

What the points mean does not enter this room. mlflow is imported only for trackers that are not servers.
"""
