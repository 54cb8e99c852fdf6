"""The first decode of a type, in a separate process."""

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
    """The types that msgspec collects when a program decodes after its imports, as the text of a list; and its errors.

    msgspec collects the field types of a class at the first decode, and crashes if two threads do this at the same
    time. If several threads may decode first, the list must be empty.
    """
    program = "\n".join((imports, _WATCHES, decodes, "print(collected)"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip(), done.stderr
