"""The state machine of a job: events in, effects out, and every decision in between.

Pure: no clock, no socket, no file, no thread. Events contain all external facts that a decision needs.
"""
