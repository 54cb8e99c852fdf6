"""A private Airflow, MLflow and node agent on this machine, for the demo and for tests. Not a part of the provider."""
