"""xxh3-64 inside kernels, so that bytes are fetched from memory once for their checksum and for their use.

A kernel calls the C library that the package xxhash contains, at its address. Builds of the package that hide the
library's functions are used by Python only.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Array = np.ndarray[Any, Any]

# Words of a checksum: addresses of functions and of their state, and the result.
_RESET, _UPDATE, _DIGEST, _STATE, _RESULT = range(5)


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
        functions = library.XXH3_64bits_reset, update, library.XXH3_64bits_digest
        self.addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self.create, self.free = library.XXH3_createState, library.XXH3_freeState
        self.create.restype, self.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def _library() -> _Library | None:
    try:
        return _Library()
    except (ImportError, AttributeError, OSError):
        return None


LIBRARY = _library()


class _State:
    """A state of the C library, which is freed with this object."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        self.address = library.create()
        if not self.address:
            raise MemoryError

    def __del__(self) -> None:
        self._library.free(self.address)


class KernelChecksum(threading.local):
    """A checksum that kernels compute, one in each thread that uses the object.

    Attributes:
        words: [5] int64, for kernels; zeros without LIBRARY: kernels compute none.
    """

    def __init__(self) -> None:
        self.words: Array = np.zeros(5, np.int64)
        if LIBRARY is not None:
            self._state = _State(LIBRARY)
            self.words[: _STATE + 1] = [*LIBRARY.addresses, self._state.address]
        self._result = self.words[_RESULT:].view(np.uint64)

    def intdigest(self) -> int | None:
        """What a kernel has finished last in this thread; None without LIBRARY."""
        return int(self._result[0]) if self.words[_UPDATE] else None


def _call(context: Any, builder: Any, signature: Any, checksum: Any, which: int, result: Any, *arguments: Any) -> Any:
    """The code that calls a function of the library, if there is one, with the state; what it returns is stored."""
    long, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
    words = builder.bitcast(context.make_array(signature.args[0])(context, builder, checksum).data, long.as_pointer())
    function, state = (builder.load(builder.gep(words, [long(place)])) for place in (which, _STATE))
    with builder.if_then(builder.icmp_unsigned("!=", function, long(0)), likely=True):
        called = ir.FunctionType(result, [pointer, *(argument.type for argument in arguments)])
        returned = builder.call(
            builder.inttoptr(function, called.as_pointer()), [builder.inttoptr(state, pointer), *arguments]
        )
        if result == long:
            builder.store(returned, builder.gep(words, [long(_RESULT)]))
    return context.get_dummy_value()


@intrinsic
def begin_checksum(typing_context: Any, checksum: Any) -> Any:
    """Begins a checksum, `KernelChecksum.words`, of nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(context, builder, signature, arguments[0], _RESET, ir.IntType(32))

    return types.void(checksum), generate


@intrinsic
def end_checksum(typing_context: Any, checksum: Any) -> Any:
    """Computes the result of everything since `begin_checksum`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(context, builder, signature, arguments[0], _DIGEST, ir.IntType(64))

    return types.void(checksum), generate


@intrinsic
def update_checksum(typing_context: Any, checksum: Any, words: Any, first: Any, count: Any) -> Any:
    """Adds words[first : first + count] to a checksum; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[1])(context, builder, arguments[1])
        first = builder.bitcast(builder.gep(source.data, [arguments[2]]), ir.IntType(8).as_pointer())
        item = context.get_abi_sizeof(context.get_data_type(signature.args[1].dtype))
        size = builder.mul(arguments[3], ir.IntType(64)(item))
        return _call(context, builder, signature, arguments[0], _UPDATE, ir.IntType(32), first, size)

    return types.void(checksum, words, types.uint64, types.uint64), generate
