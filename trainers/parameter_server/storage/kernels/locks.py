"""Locks that kernels take and release themselves, so that a request crosses into compiled code once.

Who waits tries in a loop that gives the processor away, and never holds the GIL. A lock belongs to no thread: a kernel
may return with it, for Python to go on under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel

Array = np.ndarray[Any, Any]

_WORDS = 8  # of a lock, a cache line: 0 is free, 1 is held; how many wait
_HELD, _WAITING = 0, 1
_SPINS, _YIELDS, _MOST_NAPS = 64, 256, 20
_NAP_MICROSECONDS = np.uint32(50)
BEFORE_LOOKING = 256
"""Cells that work in steps passes under a lock before it looks whether somebody waits."""

_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    word = ir.IntType(64)
    view = context.make_array(kind)(context, builder, array)
    offset = builder.mul(index, ir.Constant(word, 8))
    return builder.inttoptr(builder.add(builder.ptrtoint(view.data, word), offset), word.as_pointer())


@intrinsic
def _swap(typing_context: Any, array: Any, index: Any) -> Any:
    """Turns array[index] int64 from 0 into 1; whether it was 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        found = builder.cmpxchg(at, ir.Constant(word, 0), ir.Constant(word, 1), "acquire", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64), generate


@intrinsic
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index] int64, as other threads have written it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(at, "monotonic", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def _clear(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index] = 0 after everything that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(ir.Constant(ir.IntType(64), 0), at, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def _add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] += value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.atomic_rmw("add", at, arguments[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@kernel
def try_lock(locks, number):  # type: ignore[no-untyped-def]
    """Whether it was free, and is held now."""
    return _swap(locks, number * _WORDS + _HELD)


@kernel
def lock(locks, number):  # type: ignore[no-untyped-def]
    """Holds it, however long that takes."""
    at = number * _WORDS
    if _swap(locks, at + _HELD):
        return
    _add(locks, at + _WAITING, 1)
    tries = 0
    while _load(locks, at + _HELD) != 0 or not _swap(locks, at + _HELD):
        tries += 1
        if tries > _SPINS + _YIELDS:
            _usleep(_NAP_MICROSECONDS)
        elif tries > _SPINS:
            _sched_yield()
    _add(locks, at + _WAITING, -1)


@kernel
def unlock(locks, number):  # type: ignore[no-untyped-def]
    """Releases the lock, whichever thread holds it."""
    _clear(locks, number * _WORDS + _HELD)


@kernel
def is_wanted(locks, number):  # type: ignore[no-untyped-def]
    """Whether somebody waits for it."""
    return _load(locks, number * _WORDS + _WAITING) > 0


@inlined
def is_due(passed, most, locks, number):  # type: ignore[no-untyped-def]
    """Whether work under a lock is to pause after so many cells: `most` at most, fewer when somebody waits for it."""
    return passed == most or (passed > 0 and passed % BEFORE_LOOKING == 0 and is_wanted(locks, number))


@kernel
def let_pass(locks, number):  # type: ignore[no-untyped-def]
    """Gives those who wait for a lock that is not held here the time to take it, about a millisecond at most."""
    tries = 0
    while is_wanted(locks, number) and tries < _YIELDS + _MOST_NAPS:
        tries += 1
        if tries > _YIELDS:
            _usleep(_NAP_MICROSECONDS)
        else:
            _sched_yield()


@kernel
def lock_next(locks, numbers):  # type: ignore[no-untyped-def]
    """Holds one of the locks whose bits are set in `numbers`, a free one if there is; -1: no bit is set."""
    first = -1
    number = 0
    while numbers >> number:
        if (numbers >> number) & 1:
            if try_lock(locks, number):
                return number
            if first < 0:
                first = number
        number += 1
    if first >= 0:
        lock(locks, first)
    return first


class Locks:
    """Some locks, at most 62.

    Attributes:
        words: what kernels take.
    """

    def __init__(self, count: int) -> None:
        self.words: Array = np.zeros(count * _WORDS, np.int64)
        self.count = count

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Not reentrant. For work in steps: requests that wait come first.

        A thread that releases a lock only to take it again has it sooner than those who nap while they wait for it.
        """
        let_pass(self.words, number)
        lock(self.words, number)
        try:
            yield
        finally:
            unlock(self.words, number)
