"""Locks that kernels acquire and release themselves, so that a request calls compiled code once.

A waiting thread spins, then yields the processor, then sleeps; it does not hold the GIL. A lock belongs to no thread: a
kernel can return while it is held, and Python releases it.
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

_WORDS = 8  # of a lock, one cache line: whether it is held (0 or 1), numbers of waiting threads and, of these, of steps
_HELD, _WAITERS, _STEPS = 0, 1, 2
_SPINS, _YIELDS, _MOST_NAPS = 64, 256, 20
_NAP_MICROSECONDS = np.uint32(50)
CELLS_PER_CHECK = 2048
"""Cells that a kernel processes under a lock before it checks whether a thread waits for the lock: less than half a
millisecond. A request has the lock for all of its rows, some thousands. On a busy server a thread always waits, and a
save has the lock for this many cells in turn with each request. With 256 cells, and behind all waiting requests, saving
240,000 rows of 800 bytes with a tenth of a core took 88 s beside four busy threads; now 15 s, and 2 s alone.
"""

_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    word = ir.IntType(64)
    view = context.make_array(kind)(context, builder, array)
    offset = builder.mul(index, ir.Constant(word, 8))
    return builder.inttoptr(builder.add(builder.ptrtoint(view.data, word), offset), word.as_pointer())


@intrinsic
def _swap(typing_context: Any, array: Any, index: Any) -> Any:
    """Changes array[index] int64 from 0 to 1 atomically; returns whether it was 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        found = builder.cmpxchg(at, ir.Constant(word, 0), ir.Constant(word, 1), "acquire", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64), generate


@intrinsic
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    """Atomic read of array[index] int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(at, "monotonic", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def _clear(typing_context: Any, array: Any, index: Any) -> Any:
    """Atomic array[index] = 0, after all earlier writes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(ir.Constant(ir.IntType(64), 0), at, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def _add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Atomic array[index] += value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.atomic_rmw("add", at, arguments[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@kernel
def try_lock(locks, number):  # type: ignore[no-untyped-def]
    """Acquires the lock if it is free and no step waits for it; returns whether it was."""
    at = number * _WORDS
    return _load(locks, at + _STEPS) == 0 and _swap(locks, at + _HELD)


@kernel
def _wait(tries):  # type: ignore[no-untyped-def]
    """Waits after so many tries: first not at all, in the end for a nap."""
    if tries > _SPINS + _YIELDS:
        _usleep(_NAP_MICROSECONDS)
    elif tries > _SPINS:
        _sched_yield()


@kernel
def lock(locks, number):  # type: ignore[no-untyped-def]
    """Acquires the lock; waits as long as necessary. A waiting step has it first, if it takes it within about a
    millisecond."""
    if try_lock(locks, number):
        return
    at = number * _WORDS
    _add(locks, at + _WAITERS, 1)
    tries, passed = 0, 0
    while True:
        if _load(locks, at + _HELD) == 0:
            is_left_to_step = _load(locks, at + _STEPS) != 0 and passed < _YIELDS + _MOST_NAPS
            if not is_left_to_step and _swap(locks, at + _HELD):
                break
            passed += is_left_to_step
        tries += 1
        _wait(tries)
    _add(locks, at + _WAITERS, -1)


@kernel
def lock_for_step(locks, number):  # type: ignore[no-untyped-def]
    """Acquires the lock before threads that call `lock`; waits as long as necessary."""
    at, tries = number * _WORDS, 0
    _add(locks, at + _WAITERS, 1)
    _add(locks, at + _STEPS, 1)
    while _load(locks, at + _HELD) != 0 or not _swap(locks, at + _HELD):
        tries += 1
        _wait(tries)
    _add(locks, at + _STEPS, -1)
    _add(locks, at + _WAITERS, -1)


@kernel
def unlock(locks, number):  # type: ignore[no-untyped-def]
    """Releases the lock, whichever thread holds it."""
    _clear(locks, number * _WORDS + _HELD)


@kernel
def has_waiter(locks, number):  # type: ignore[no-untyped-def]
    """Whether a thread waits for the lock."""
    return _load(locks, number * _WORDS + _WAITERS) > 0


@inlined
def should_pause(passed, most, locks, number):  # type: ignore[no-untyped-def]
    """Whether to release the lock after `passed` cells: after `most`, or earlier if a thread waits for it."""
    return passed == most or (passed > 0 and passed % CELLS_PER_CHECK == 0 and has_waiter(locks, number))


@kernel
def yield_to_waiter(locks, number):  # type: ignore[no-untyped-def]
    """Gives a waiting thread time to acquire a lock that the caller does not hold: about a millisecond at most.

    Only one of them: on a busy server another one always waits, and a yield lasts until the others have used their
    time.
    """
    tries = 0
    while has_waiter(locks, number) and _load(locks, number * _WORDS + _HELD) == 0 and tries < _YIELDS + _MOST_NAPS:
        tries += 1
        _wait(_SPINS + tries)


@kernel
def lock_next(locks, numbers):  # type: ignore[no-untyped-def]
    """Acquires one of the locks whose bits are set, a free one if possible; returns its number (-1: no bit is set)."""
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
    """At most 62 locks.

    Attributes:
        words: [8 count] int64, the argument of kernels.
    """

    def __init__(self, count: int) -> None:
        self.words: Array = np.zeros(count * _WORDS, np.int64)
        self.count = count

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Holds a lock, for work in steps, in turn with threads that wait for it. Not reentrant.

        A waiting thread comes first, because one that releases a lock and acquires it again would always be faster than
        waiting threads, which sleep. Then the step comes first, because on a busy server the lock is nearly always held
        and waited for, and a save would hardly ever get it.
        """
        yield_to_waiter(self.words, number)
        lock_for_step(self.words, number)
        try:
            yield
        finally:
            unlock(self.words, number)
