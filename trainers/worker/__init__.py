"""The worker process: lease shards, pull, compute, push, acknowledge. The whole story is told in `loop.py`.

Everything that talks to the master is in `session.py`; a model or a formula does not belong here.
"""
