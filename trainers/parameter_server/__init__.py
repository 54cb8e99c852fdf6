"""The parameter server: growable embedding tables and a share of the dense parameters, with their optimiser state.

This room contains the storage of rows, the consistency modes and the server process. It must not import torch, because
a server must start in a second and use memory only for rows.
"""
