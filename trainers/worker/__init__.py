"""The worker process: lease shards, pull, compute, push, acknowledge. `loop.py` has the whole training loop.

Calls to the master are in `session.py`; models and formulas do not belong here.
"""
