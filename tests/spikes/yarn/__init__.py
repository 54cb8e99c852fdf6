"""A minimal backend that runs a job on YARN and tests the cluster protocol.

All machines of the cluster share the folder `staging`, and have this checkout and its interpreter.
"""
