from __future__ import annotations

import subprocess
import sys


def test_output_of_a_library_does_not_reach_standard_output() -> None:
    code = (
        "import ctypes, os, sys\n"
        "from elastrec.platform.scaling.native_output import native_output_to_stderr\n"
        "c = ctypes.CDLL(None)\n"
        "print('before', flush=True)\n"
        "with native_output_to_stderr():\n"
        "    c.puts(b'from C')\n"
        "print('after')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["before", "after"]
    assert "from C" in ran.stderr
