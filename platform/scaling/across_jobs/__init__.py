"""The choice across jobs and teams: whose capacity it is, and at most one change per job (DLRover-RM §4.3)."""
