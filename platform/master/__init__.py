"""The job master: pure state machines for shards, membership and phases, inside a thin journalled service.

This room contains the decisions of one job. It does not import torch or train, and is independent of the kind of
cluster.
"""
