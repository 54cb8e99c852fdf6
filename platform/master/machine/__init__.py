"""The state machine of a job: events in, effects out, and every decision in between.

Pure: no clock, no socket, no file, no thread. What a decision needs of the world comes in an event.
"""
