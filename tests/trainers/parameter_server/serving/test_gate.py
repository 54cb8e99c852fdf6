"""The gate: many threads inside, or one thread that has closed it."""

from __future__ import annotations

import threading

from elastrec.trainers.parameter_server.serving.gate import Gate


def test_closing_waits_for_running_calls_and_new_calls_wait_for_it() -> None:
    gate, order = Gate(), []
    inside, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def stay() -> None:
        with gate.passed():
            inside.set()
            leave.wait(60)
            order.append("left")

    def close() -> None:
        with gate.closed():
            order.append("closed")
            closed.wait(0.2)
            order.append("opened")

    def come() -> None:
        with gate.passed():
            order.append("passed")

    threads = [threading.Thread(target=stay), threading.Thread(target=close), threading.Thread(target=come)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    while not gate._closing:
        pass
    threads[2].start()
    assert order == []
    leave.set()
    for thread in threads:
        thread.join(60)
    assert order == ["left", "closed", "opened", "passed"]


def test_several_threads_may_be_inside_the_gate() -> None:
    gate, both = Gate(), threading.Barrier(2, timeout=60)

    def meet() -> None:
        with gate.passed():
            both.wait()

    threads = [threading.Thread(target=meet) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not both.broken
