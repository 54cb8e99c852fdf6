"""Workloads from files and from what has run before, and policies compared on them in the simulator.

Here files are read and records of the history are made into jobs; the simulated cluster itself is `platform.simulator`,
which knows neither. Nothing here touches a real cluster, and no HTTP: the caller has fetched the records.
"""
