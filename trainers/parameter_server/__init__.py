"""The parameter server: growable embedding tables and a share of the dense parameters, with their optimiser state.

Here belong the rows' storage, the consistency modes and the server process. Nothing here may import torch: a server
must start in a second and hold nothing but rows.
"""

import os
import sys
from pathlib import Path

import xxhash

from elastrec.platform.specs.numba_cache import choose_cache_folder


def _separate_kernels_by_source() -> None:
    """Keeps compiled kernels in a folder of this state of their sources, unless the user chose a folder.

    numba compiles a kernel anew when its own file has changed, but not when a kernel that it calls has.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    choose_cache_folder()
    package = Path(__file__).parent
    sources = sorted([*package.rglob("*.py"), *package.parent.glob("embedding/*.py")])
    digest = xxhash.xxh3_64_hexdigest(b"\0".join(source.read_bytes() for source in sources))
    base = os.environ.get("NUMBA_CACHE_DIR", str(package / "__pycache__"))
    folder = os.environ["NUMBA_CACHE_DIR"] = f"{base}/kernels-{digest}"
    if "numba" in sys.modules:  # it has read its settings already
        sys.modules["numba"].config.CACHE_DIR = folder


# Before any kernel is imported: numba reads its settings once.
_separate_kernels_by_source()
