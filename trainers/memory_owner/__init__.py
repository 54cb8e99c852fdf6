"""The first process of a parameter server's pod on a cluster without memory volumes: it owns the memory with parts of
records, and restarts a crashed server (docs/architecture.md, «Flash checkpoint»).

It runs as long as the pod and uses the pod's memory, so that it imports only the standard library. Masters and records
do not belong here.
"""
