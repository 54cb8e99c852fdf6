"""The Airflow provider: connection, operators, trigger and links, all thin over `elastrec.platform.jobs`.

Nothing here decides anything about training, and nothing here loads torch: DAG files import this room, and Airflow
parses DAG files every few seconds. Heavy imports (MLflow, pyarrow) therefore wait inside the functions that need them.
"""
