"""The choice across jobs and teams: quotas, and at most one change per job (DLRover-RM §4.3)."""
