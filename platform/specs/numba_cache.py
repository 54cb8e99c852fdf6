"""Where compiled kernels are kept between processes: compiling them anew would cost every pod ten seconds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def choose_cache_folder() -> None:
    """Points numba's cache to a folder of this user when the package's own folder cannot be written.

    A cache folder given by `NUMBA_CACHE_DIR` is left alone.
    """
    package = Path(__file__).parent
    if "NUMBA_CACHE_DIR" in os.environ or os.access(package, os.W_OK):
        return
    home_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (home_cache, Path(tempfile.gettempdir())):
        folder = base / f"elastrec-kernels-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Compiled code of somebody else must never be loaded.
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            return
