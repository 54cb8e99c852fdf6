"""Training data: manifests, shard readers, trainer-ready batches, metric sketches, generated and converted data.

It uses numpy and pyarrow, and a compiled loop for reading windows. torch, the master's decisions and models do not
belong here. Import from the modules: a process loads only what it uses.
"""
