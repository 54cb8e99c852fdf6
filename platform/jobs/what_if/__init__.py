"""Workloads from files and from past jobs, and comparisons of policies on them in the simulator.

This room reads files and converts records of the history to jobs; the simulated cluster is `platform.simulator`. It
uses no real cluster and makes no HTTP requests: the caller fetches the records.
"""
