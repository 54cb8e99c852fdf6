"""The end of a job: evaluation, gate, registration, and its run in MLflow."""
