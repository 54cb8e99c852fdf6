"""The pods of a job: the wanted pods, the pods in the cluster, their reports, and the reconciliation of the two.

Only `reconciler` and `operations` call the cluster, and only `calls` handles calls of pods; the rest is pure.
"""
