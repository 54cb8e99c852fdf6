"""xxh3-64 inside kernels, so that bytes are fetched from memory once for their checksum and for their use.

A kernel calls the C library that the package xxhash contains, at its address. Builds of the package that hide the
library's functions are used by Python only.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Array = np.ndarray[Any, Any]

NO_CHECKSUM: Array = np.zeros(2, np.int64)
"""For kernels that are not to compute one."""


class _Library:
    """The functions of the C library.

    Raises:
        ImportError, AttributeError, OSError: the package contains no such library, or hides its functions.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(importlib.import_module("xxhash._xxhash").__file__)
        # The first one uses the widest vectors of the processor; builds for other processors than x86 lack it.
        dispatching = getattr(library, "XXH3_64bits_update_dispatch", None)
        update = dispatching or library.XXH3_64bits_update
        self.update = ctypes.cast(update, ctypes.c_void_p).value
        self.create, self.free = library.XXH3_createState, library.XXH3_freeState
        self.reset, self.digest = library.XXH3_64bits_reset, library.XXH3_64bits_digest
        self.create.restype, self.digest.restype = ctypes.c_void_p, ctypes.c_uint64
        for function in (self.free, self.reset, self.digest):
            function.argtypes = [ctypes.c_void_p]


def _library() -> _Library | None:
    try:
        return _Library()
    except (ImportError, AttributeError, OSError):
        return None


LIBRARY = _library()


class KernelChecksum:
    """A checksum that kernels compute. LIBRARY must not be None.

    Attributes:
        words: [2] int64, for `update_checksum`: the addresses of a function and of its state.
    """

    def __init__(self) -> None:
        assert LIBRARY is not None, "the caller has looked"
        self._library = LIBRARY
        self._state = LIBRARY.create()
        if not self._state:
            raise MemoryError
        LIBRARY.reset(self._state)
        self.words: Array = np.array([LIBRARY.update, self._state], np.int64)

    def __del__(self) -> None:
        self._library.free(self._state)

    def intdigest(self) -> int:
        """Of everything so far."""
        return int(self._library.digest(self._state))


@intrinsic
def update_checksum(typing_context: Any, checksum: Any, words: Any, first: Any, count: Any) -> Any:
    """Adds words[first : first + count] to a checksum, `KernelChecksum.words`; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        addresses, source = (
            context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 1)
        )
        function, state = (
            builder.load(builder.gep(builder.bitcast(addresses.data, long.as_pointer()), [long(place)]))
            for place in (0, 1)
        )
        item = context.get_abi_sizeof(context.get_data_type(signature.args[1].dtype))
        called = ir.FunctionType(ir.IntType(32), [pointer, pointer, long])
        builder.call(
            builder.inttoptr(function, called.as_pointer()),
            [
                builder.inttoptr(state, pointer),
                builder.bitcast(builder.gep(source.data, [arguments[2]]), pointer),
                builder.mul(arguments[3], long(item)),
            ],
        )
        return context.get_dummy_value()

    return types.void(checksum, words, types.uint64, types.uint64), generate
