"""Observation of a job from outside: its master, its pods, its past. This room does not change jobs."""
