"""The parameter server: growable embedding tables and a share of the dense parameters, with their optimiser state.

Here belong the rows' storage, the consistency modes and the server process. Nothing here may import torch: a server
must start in a second and hold nothing but rows.
"""
