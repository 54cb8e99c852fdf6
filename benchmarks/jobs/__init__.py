"""What a job costs beside its training: calls, the master, start-up, scaling out."""
