"""Steps before a job runs: its file is checked and completed, sizes are chosen, and the master is launched.

All input errors are reported here, before anything is created.
"""
