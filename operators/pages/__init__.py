"""Pages within Airflow's UI: all jobs, and one job while it runs. They never change a job."""
