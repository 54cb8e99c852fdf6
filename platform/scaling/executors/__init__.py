"""How many data executors a job needs and how large they are (Primus §3.2)."""
