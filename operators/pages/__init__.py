"""Pages in Airflow's own pages: all jobs, and one job while it runs. They only look; nothing here changes a job."""
