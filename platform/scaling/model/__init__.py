"""The resource-performance model (DLRover-RM §4.1): how long a step takes, fitted to what a job measured."""
