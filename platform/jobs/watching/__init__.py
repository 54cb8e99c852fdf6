"""A job seen from outside: its master, its pods, its past. Nothing here changes a job."""
