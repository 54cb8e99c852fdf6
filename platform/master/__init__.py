"""The job master: pure state machines for shards, membership and phases, inside a thin journalled service.

Here belong the decisions of one job. Nothing here imports torch, trains, or knows one cluster from another.
"""
