"""Tests of the campaign itself: what it draws, sees, checks and counts as left."""
