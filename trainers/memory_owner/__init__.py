"""The first process of a parameter server's pod on a cluster without memory volumes: it owns the memory in which parts
of records lie, and starts the server again that crashes (docs/architecture.md, «Flash checkpoint»).

It lives as long as the pod and takes memory of it, so nothing is imported here but the standard library. It knows
neither masters nor records.
"""
