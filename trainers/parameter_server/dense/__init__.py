"""The dense parameters on servers: their division into buckets, and a server's share.

This room contains the layout of the flat vector, its update rules, and moves of its buckets. Embedding rows, workers
and messages do not belong here.
"""
