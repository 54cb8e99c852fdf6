"""Sorting of logs by session, before any job, and estimates of its savings (RecD's O2).

Training jobs do not use this room.
"""
