"""Programs that decode something first, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

_WATCHES = """
import typing

collected = []


class Reference(typing.ForwardRef, _root=True):
    def __init__(self, argument, **options):
        collected.append(argument)
        super().__init__(argument, **options)


typing.ForwardRef = Reference
"""


def types_collected(imports: str, decodes: str) -> tuple[str, str]:
    """What msgspec collects for a program that decodes after its imports, as a list in text, and the program's errors.

    msgspec collects the types of a class when it first decodes it, and crashes if two threads decode it then: where
    several may be the first, the list must be empty.
    """
    program = "\n".join((imports, _WATCHES, decodes, "print(collected)"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip(), done.stderr
