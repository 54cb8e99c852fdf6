"""Tests of the campaign itself: its plans, observations and checks."""
