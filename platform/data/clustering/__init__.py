"""Logs sorted by session, before any job, and what that would save (RecD's O2).

Nothing here runs inside a training job.
"""
