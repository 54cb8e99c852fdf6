"""`order` with fake masters on sockets: its requests and its output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from elastrec.platform import jobs
from elastrec.platform.cli.app import root
from elastrec.platform.cli.commands import order
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.transport.messages.observer import OrderedWorker, OrdersAnswer, OrderWorkers, WorkerOrder
from tests.platform.jobs.scaling.masters import masters

WORKERS = [
    OrderedWorker(pod="clicks-1-worker-0", batch_size=64, learning_rate_scale=0.5, is_idle=False),
    OrderedWorker(pod="clicks-1-worker-1", batch_size=None, learning_rate_scale=1.0, is_idle=True),
]
REFUSED = OrdersAnswer(reason="pod: 'nobody' is not allowed")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OrderWorkers]]:
    """What the master of the job clicks-1 was asked; it refuses whoever names the worker `nobody`."""
    asked = list[OrderWorkers]()

    def answer(message: OrderWorkers) -> OrdersAnswer:
        asked.append(message)
        return (
            OrdersAnswer(reason="pod: 'nobody' is not allowed")
            if "nobody" in message.pods
            else OrdersAnswer("", WORKERS)
        )

    with masters(tmp_path) as cluster:
        cluster.serve("clicks-1", {OrderWorkers: answer})
        monkeypatch.setattr(jobs.Platform, "from_environment", lambda **options: cluster.platform)
        monkeypatch.setattr(order, "pods_of", lambda platform, job: [])
        yield asked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["order", *arguments])


def test_an_order_is_sent_with_its_workers_and_instructions(asked: list[OrderWorkers]) -> None:
    done = run(
        "clicks-1", "--worker", "a", "--worker", "b", "--batch-size", "64", "--learning-rate-scale", "0.5", "--idle"
    )
    assert done.exit_code == 0, done.output
    wanted = WorkerOrder(batch_size=64, learning_rate_scale=0.5, is_idle=True)
    assert asked == [OrderWorkers(order=wanted, pods=["a", "b"])]
    assert done.output.splitlines() == [
        "clicks-1: ordered",
        "  clicks-1-worker-0: active, batch size 64, learning rates × 0.5",
        "  clicks-1-worker-1: idle, batch size the job file's, learning rates × 1",
    ]


@pytest.mark.parametrize(
    ("arguments", "order", "dry_run"),
    [
        (["--active"], WorkerOrder(is_idle=False), False),
        (["--reset", "--batch-size", "8"], WorkerOrder(batch_size=8, resets=True), False),
        (["--batch-size", "8", "--dry-run"], WorkerOrder(batch_size=8), True),
        ([], WorkerOrder(), True),
    ],
)
def test_without_names_it_is_for_all_workers_and_without_an_order_nothing_changes(
    asked: list[OrderWorkers], arguments: list[str], order: WorkerOrder, dry_run: bool
) -> None:
    done = run("clicks-1", *arguments, "--output", "json")
    assert asked == [OrderWorkers(order=order, dry_run=dry_run)]
    said = json.loads(done.output)
    assert said["outcome"] == ("nothing was ordered" if dry_run else "ordered")
    assert said["workers"][0] == {
        "pod": "clicks-1-worker-0", "batch_size": 64, "learning_rate_scale": 0.5, "is_idle": False,
    }  # fmt: skip


def test_a_refusal_is_an_error(asked: list[OrderWorkers]) -> None:
    done = run("clicks-1", "--worker", "nobody", "--batch-size", "8")
    assert done.exit_code == 1 and "clicks-1: pod: 'nobody' is not allowed" in done.output


def test_a_job_without_a_master_takes_no_orders(asked: list[OrderWorkers]) -> None:
    done = run("clicks-2", "--batch-size", "8")
    assert isinstance(done.exception, ClusterError) and "only a running job takes orders" in str(done.exception)


def test_a_batch_size_of_none_is_refused() -> None:
    done = run("clicks-1", "--batch-size", "0")
    assert done.exit_code == 2 and "0 is not in the range x>=1" in done.output
