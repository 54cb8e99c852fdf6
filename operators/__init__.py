"""The Airflow provider: connection, operators, trigger and links, all thin over `elastrec.platform.jobs`.

This room makes no decisions about training and does not load torch: DAG files import it, and Airflow parses DAG files
every few seconds. Therefore, slow imports (MLflow, pyarrow) are inside the functions that need them.
"""
