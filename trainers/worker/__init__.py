"""The worker process: lease shards, pull, compute, push, acknowledge. `loop.py` shows it as a whole.

Everything that talks to the master is in `session.py`; a model or a formula does not belong here.
"""
