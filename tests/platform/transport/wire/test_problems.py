"""Errors are sent as values: the caller raises the same class as the handler, without parsing text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from structlog.testing import capture_logs

from elastrec.platform.specs import errors
from elastrec.platform.specs.errors import (
    AuthenticationError,
    ClusterError,
    ElastrecError,
    FieldProblem,
    HistoryAwayError,
    IncompatibleError,
    SpecError,
    TransportError,
)
from elastrec.platform.transport import RpcClient, RpcServer, new_token
from elastrec.platform.transport import client as client_module
from elastrec.platform.transport.versions import code_version
from elastrec.platform.transport.wire.problems import Problem, error_of, problem_of
from tests.platform.transport.messages import Answered, Ask, AskArrays

TOKEN = new_token()
TWO = [FieldProblem("spec.a", "1", "above 1", "raise it"), FieldProblem("spec.b", "''", "a name")]
OURS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ElastrecError)]


def an_error(kind: type[ElastrecError]) -> ElastrecError:
    return SpecError(TWO, "job.yaml") if kind is SpecError else kind("the reason")


class OfAnotherRoomError(ClusterError):
    """The wire does not know this class, but the one above it."""


class Raising:
    def __init__(self) -> None:
        self.error: Exception = ValueError()

    def call(self, message: Ask) -> Answered:
        raise self.error

    def request(self, message: AskArrays, arrays: list[object]) -> tuple[Answered, list[object]]:
        raise self.error


@pytest.fixture(scope="module")
def raising() -> Raising:
    return Raising()


@pytest.fixture(scope="module")
def client(raising: Raising) -> Iterator[RpcClient]:
    server = RpcServer({Ask: raising.call}, token=TOKEN, array_handlers={AskArrays: raising.request})
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    yield client
    client.close()
    server.stop()


@pytest.mark.parametrize("kind", OURS)
def test_an_error_of_every_class_arrives_as_that_class_by_call_and_by_stream(
    client: RpcClient, raising: Raising, kind: type[ElastrecError], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising.error = an_error(kind)
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_SECONDS", 1e9)  # no retries
    stream = client.open_stream([Answered])
    for ask in (lambda: client.call(Ask(1), Answered), lambda: stream.request(AskArrays(1))):
        with pytest.raises(ElastrecError) as caught:
            ask()
        assert type(caught.value) is (TransportError if kind is ElastrecError else kind)
        assert str(raising.error) in str(caught.value)
        assert caught.value.retryable is raising.error.retryable
        assert (caught.value.field, caught.value.remedy) == (raising.error.field, raising.error.remedy)
    stream.close()


def test_every_wrong_field_of_a_job_file_arrives(client: RpcClient, raising: Raising) -> None:
    raising.error = SpecError(TWO, "job.yaml")
    with pytest.raises(SpecError) as caught:
        client.call(Ask(1), Answered)
    assert caught.value.problems == TWO
    assert (caught.value.field, caught.value.remedy) == ("spec.a", "raise it")


@pytest.mark.parametrize("kind", [ClusterError, TransportError])
def test_a_problem_is_retryable_if_its_error_is(
    client: RpcClient, raising: Raising, kind: type[ClusterError | TransportError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_SECONDS", 1e9)  # no retries
    for retryable in (False, True):
        raising.error = kind("x", retryable=retryable)
        with pytest.raises(kind) as caught:
            client.call(Ask(1), Answered)
        assert caught.value.retryable is retryable
    assert HistoryAwayError("x").retryable and not IncompatibleError("x").retryable


def test_an_error_of_a_subclass_arrives_as_our_class(client: RpcClient, raising: Raising) -> None:
    raising.error = OfAnotherRoomError("x", retryable=False)
    with pytest.raises(ClusterError, match=r"^x$") as caught:
        client.call(Ask(1), Answered)
    assert type(caught.value) is ClusterError


def test_a_bug_of_the_handler_arrives_as_an_error_that_is_not_retried(client: RpcClient, raising: Raising) -> None:
    raising.error = ZeroDivisionError("by zero")
    with capture_logs() as logs, pytest.raises(TransportError, match="ZeroDivisionError: by zero") as caught:
        client.call(Ask(1), Answered)
    assert not caught.value.retryable
    assert [line["event"] for line in logs] == ["handler_failed"]


def test_the_end_of_a_file_in_a_handler_is_an_error_and_not_the_end_of_the_connection(
    client: RpcClient, raising: Raising
) -> None:
    raising.error = EOFError()
    with capture_logs(), pytest.raises(TransportError, match="EOFError"):
        client.call(Ask(1), Answered)


@pytest.mark.parametrize("code", ["", "NoSuchError", "object", "__doc__", "FieldProblem", "annotations", "\0"])
def test_an_unknown_error_code_becomes_a_transport_error_with_its_text(code: str) -> None:
    error = error_of(Problem(code, "the reason", retryable=True), "host:1", "2.0")
    assert type(error) is TransportError and error.retryable
    assert "the reason" in str(error) and "host:1" in str(error)


def test_an_unreadable_problem_is_reported(client: RpcClient, raising: Raising) -> None:
    server = RpcServer({Ask: lambda message: Garbage(7)}, token=TOKEN)
    server.serve_in_background()
    with pytest.raises(IncompatibleError, match="could not be decoded"):
        RpcClient(server.address, TOKEN).call(Ask(1), Answered)
    server.stop()


class Garbage(msgspec.Struct, tag="Problem"):
    """Calls itself a Problem."""

    code: int


def test_an_incompatible_server_is_named_with_both_versions_and_the_remedy() -> None:
    error = error_of(problem_of(IncompatibleError("cannot read x")), "host:1", "2.0")
    assert "elastrec 2.0" in str(error) and code_version() in str(error)
    assert error.remedy in str(error) and "same version on every node" in error.remedy


def test_an_authentication_error_of_the_server_itself_is_never_retryable(client: RpcClient, raising: Raising) -> None:
    raising.error = AuthenticationError("of another server")
    with pytest.raises(AuthenticationError) as caught:
        client.call(Ask(1), Answered)
    assert not caught.value.retryable
