"""Specs: the files that users write, the metrics that jobs report, and the errors of all packages. Imports no other
room.

Only pydantic models, their text forms, the error hierarchy, the settings of a process and the writing of a small file
belong here; nothing that opens a socket, starts a process or knows a cluster.
"""
