"""The pods of a job: which it wants, which the cluster has, what they say and how the two are made equal.

Only `reconciler` and `operations` speak to a cluster, and only `calls` is spoken to by pods; the rest is pure.
"""
