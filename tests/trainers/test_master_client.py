"""A pod finds a master that has moved, ignores a superseded one, and does not wait forever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import open_store, take_term
from elastrec.platform.specs.errors import AuthenticationError, ClusterError, TransportError
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable
from elastrec.platform.transport.messages.job import Answer, Heartbeat
from elastrec.trainers.master_client import MasterClient, MasterGoneError, TermPlace

BEAT = Heartbeat(pod="worker-0", incarnation="1", generation=0, reached_version=0)
SILENT_SECONDS = 0.3
"""How long is waited for a master that is gone; others have long, for a busy machine."""


@pytest.fixture
def serve() -> Iterator[Callable[..., RpcServer]]:
    """Masters that answer every heartbeat with a directive of their term."""
    servers: list[RpcServer] = []

    def make(term: int, token: str = "secret") -> RpcServer:
        routing = RoutingTable(epoch=1, owners=[], servers=[], addresses=[])
        directive = Directive(term=term, version=1, mode=Mode.IDLE, generation=0, routing=routing)
        servers.append(RpcServer({Heartbeat: lambda message: Answer(directive=directive)}, token=token))
        servers[-1].serve_in_background()
        return servers[-1]

    yield make
    for server in servers:
        server.shutdown()


class Pod:
    """A pod's client, its store and its clock."""

    def __init__(self, folder: Path, address: str, timeout_seconds: float = 60.0) -> None:
        self.now = 0.0
        self.store = open_store(folder / "store")
        self.store.create()
        place = TermPlace(self.store.uri, "clicks", "clicks-1", timeout_seconds)
        self.client = MasterClient(address, "secret", None, place, clock=lambda: self.now)

    def call(self, timeout_seconds: float = 10.0) -> int:
        """The term of the master that answers, ten seconds later by the pod's clock."""
        self.now += 10.0
        answer = self.client.call(BEAT, Answer, timeout_seconds=timeout_seconds)
        assert answer.directive is not None
        return answer.directive.term

    def term_at(self, holder: str, address: str) -> None:
        take_term(self.store, "clicks", "clicks-1", holder=holder, address=address, base=lambda: "")


def test_a_pod_with_a_silent_master_connects_to_the_master_of_the_newest_term(
    tmp_path: Path, serve: Callable[..., RpcServer]
) -> None:
    first, second = serve(1), serve(2)
    pod = Pod(tmp_path, first.address)
    pod.term_at("a", first.address)
    assert pod.call() == 1
    pod.term_at("b", second.address)
    assert pod.call() == 1  # its own master answers, and says nothing of another
    first.shutdown()
    with pytest.raises(TransportError, match=f"the master has moved to {second.address}") as caught:
        pod.call(SILENT_SECONDS)
    assert caught.value.retryable
    assert pod.call() == 2 and pod.client.address == second.address


def test_a_pod_ignores_directives_of_lower_terms(tmp_path: Path, serve: Callable[..., RpcServer]) -> None:
    first, second = serve(1), serve(2)
    pod = Pod(tmp_path, second.address)
    assert pod.call() == 2
    pod.client._client = MasterClient(first.address, "secret", None, TermPlace())._client
    with pytest.raises(TransportError, match="has term 1, term 2 has begun") as caught:
        pod.call()
    assert caught.value.retryable
    pod.term_at("a", first.address)
    pod.term_at("b", second.address)
    with pytest.raises(TransportError, match="has term 1, term 2 has begun"):
        pod.call()
    assert pod.call() == 2 and pod.client.address == second.address


def test_a_pod_leaves_another_jobs_master_at_the_old_address(tmp_path: Path, serve: Callable[..., RpcServer]) -> None:
    stranger, own = serve(1, token="another"), serve(2)
    pod = Pod(tmp_path, stranger.address)
    with pytest.raises(AuthenticationError):
        pod.call()
    pod.term_at("b", own.address)
    with pytest.raises(TransportError, match="has moved"):
        pod.call()
    assert pod.call() == 2


def test_a_pod_without_an_answering_master_ends_at_the_timeout_and_not_before(
    tmp_path: Path, serve: Callable[..., RpcServer]
) -> None:
    master = serve(1)
    pod = Pod(tmp_path, master.address, timeout_seconds=25.0)
    assert pod.call() == 1
    master.shutdown()
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            pod.call(SILENT_SECONDS)
        assert caught.value.retryable
    with pytest.raises(MasterGoneError, match=r"for 30 s, more than spec\.faults\.master_timeout 25"):
        pod.call(SILENT_SECONDS)


def test_a_client_does_not_give_up_during_an_outage_of_the_store(
    tmp_path: Path, serve: Callable[..., RpcServer]
) -> None:
    master, later = serve(1), serve(2)
    pod = Pod(tmp_path, master.address)
    pod.term_at("a", master.address)
    pod.term_at("b", later.address)
    master.shutdown()
    terms = tmp_path / "store/clicks/terms/clicks-1"
    terms.rename(tmp_path / "away")
    terms.write_text("no folder")
    with pytest.raises(TransportError) as caught:
        pod.call(SILENT_SECONDS)
    assert caught.value.retryable and pod.client.address == master.address
    terms.unlink()
    (tmp_path / "away").rename(terms)
    with pytest.raises(TransportError, match="has moved"):
        pod.call(SILENT_SECONDS)
    assert pod.call() == 2


def test_the_environment_of_a_pod_names_what_is_missing_or_wrong(tmp_path: Path) -> None:
    given = {
        "ELASTREC_FILES": str(tmp_path), "ELASTREC_JOB_NAME": "clicks", "ELASTREC_JOB": "clicks-1",
        "ELASTREC_MASTER_TIMEOUT": "90",
    }  # fmt: skip
    with pytest.raises(ClusterError, match=f"URI of the job's store cannot be read: .*{tmp_path}/store"):
        TermPlace.read(given)
    (tmp_path / "store").write_text("s3://store")
    assert TermPlace.read(given) == TermPlace("s3://store", "clicks", "clicks-1", 90.0)
    with pytest.raises(Exception, match="ELASTREC_JOB_NAME"):
        TermPlace.read(given | {"ELASTREC_JOB_NAME": ""})
    with pytest.raises(Exception, match="ELASTREC_MASTER_TIMEOUT: 'soon' is no number of seconds"):
        TermPlace.read(given | {"ELASTREC_MASTER_TIMEOUT": "soon"})
