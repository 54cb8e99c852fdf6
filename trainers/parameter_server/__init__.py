"""The parameter server: growable embedding tables and a share of the dense parameters, with their optimiser state.

Here belong the store's kernels, the rules of the optimisers, the consistency modes and the server process. Nothing
here may import torch: a server must start in a second and hold nothing but rows.
"""

from elastrec.platform.specs.numba_cache import choose_cache_folder

# Before any kernel is imported: numba reads its settings once.
choose_cache_folder()
