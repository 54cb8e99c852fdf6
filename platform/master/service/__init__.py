"""The shell of a master around its state machine: journal, calls, effects, timed work, and resumption.

This room makes no decisions about the job; every decision is caused by an event.
"""
