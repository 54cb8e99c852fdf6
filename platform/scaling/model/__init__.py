"""The resource-performance model (DLRover-RM §4.1): the time of a step, fitted to a job's measurements."""
