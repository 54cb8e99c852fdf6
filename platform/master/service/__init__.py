"""The shell of a master around its state machine: journal, calls, effects, timed work, and what it resumes from.

No decision about the job is made here; what has to be decided becomes an event.
"""
