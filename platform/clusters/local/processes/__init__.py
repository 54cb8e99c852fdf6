"""Pods as process groups of this machine: starts, limits, supervision, logs. Independent of its callers."""
