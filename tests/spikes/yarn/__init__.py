"""The smallest backend that runs a job on YARN: what the protocol of clusters was proved with.

Every machine of the cluster sees the same folder, named `staging`, and has this checkout and its interpreter.
"""
