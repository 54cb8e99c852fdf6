"""Kafka: the client library, its settings, and descriptions of topics."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog

from elastrec.platform.specs.errors import DataError, TransportError

_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")
_ANSWER_SECONDS = 10.0
_log = structlog.get_logger()
RESERVED = frozenset(
    {
        "bootstrap.servers", "enable.idempotence", "acks", "transactional.id", "delivery.report.only.error", "group.id",
        "enable.auto.commit", "enable.partition.eof", "isolation.level", "auto.offset.reset",
    }
)  # fmt: skip
"""Settings that the user cannot change, because exactly-once depends on them."""


@dataclass(frozen=True)
class Topic:
    """The broker's description of a topic.

    Attributes:
        cluster_id: of the broker's cluster.
        topic_id: a topic that is deleted and created again gets another one.
        partitions: their number.
    """

    name: str
    cluster_id: str
    topic_id: str
    partitions: int


def client_library() -> ModuleType:
    """confluent_kafka.

    Raises:
        DataError: it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise DataError("a Kafka client is not installed; pip install 'elastrec[kafka]'") from error
    library: ModuleType = confluent_kafka
    return library


def read_settings(path: str) -> dict[str, str]:
    """Client settings from a properties file: lines `name=value`; `#` begins a comment line.

    Raises:
        DataError: the file cannot be read, a line has another form, or a setting is reserved.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    settings = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise DataError(f"{path}: line {number} is not allowed; allowed: name=value, such as security.protocol=SSL")
        if name in RESERVED:
            raise DataError(f"{path}: line {number}: {name} is not allowed; it is set by the command; remove the line")
        settings[name] = value
    return settings


def open_client(
    kind: Callable[[dict[str, Any]], Any], servers: str, settings: Mapping[str, str], fixed: Mapping[str, Any]
) -> Any:
    """A client of the library.

    Args:
        kind: the library's class.
        fixed: settings that the user cannot change.

    Raises:
        DataError: a setting is not allowed.
    """
    try:
        # Without a log level, the library writes to standard error; errors are raised anyway.
        return kind({**settings, **fixed, "bootstrap.servers": servers, "log_level": 0})
    except client_library().KafkaException as error:
        raise DataError(f"Kafka settings: {reason(error)}; correct the file of settings") from error


def describe_topic(servers: str, name: str, settings: Mapping[str, str], *, create_partitions: int = 0) -> Topic:
    """The broker's description of a topic.

    Args:
        create_partitions: create the topic with this number of partitions if it does not exist; an existing one must
            have this number. 0: it must exist.

    Raises:
        DataError: the name or a setting is not allowed; the topic does not exist, has other partitions, or is
            compacted.
        TransportError: the broker does not answer, or refuses.
    """
    if not _TOPIC.match(name) or name in (".", ".."):
        raise DataError(f"topic: {name!r} is not allowed; allowed: 1 to 249 letters, digits, '.', '_' and '-'")
    library = client_library()
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = open_client(AdminClient, servers, settings, {})
    try:
        known = admin.list_topics(timeout=_ANSWER_SECONDS)
        if name not in known.topics and create_partitions:
            new = NewTopic(name, num_partitions=create_partitions, replication_factor=-1)
            admin.create_topics([new], operation_timeout=_ANSWER_SECONDS)[name].result(2 * _ANSWER_SECONDS)
        elif name not in known.topics:
            others = ", ".join(sorted(topic for topic in known.topics if not topic.startswith("__"))) or "none"
            raise DataError(
                f"topic: {name!r} does not exist at {servers}; there are: {others}; correct the name, or make it with "
                "`elastrec data publish --partitions NUMBER`"
            )
        described = _described(library, admin, name)
        policy = _cleanup_policy(library, admin, name)
    except library.KafkaException as error:
        raise TransportError(
            f"Kafka at {servers}: {reason(error)}; check the address, that the broker runs, and the settings"
        ) from error
    count = len(described.partitions)
    if create_partitions and count != create_partitions:
        raise DataError(
            f"topic: {name!r} has {count} partitions, not {create_partitions}; allowed: as many as it has, or another "
            "topic (with more partitions later, a session's rows would be in two of them)"
        )
    if "compact" in policy:
        raise DataError(
            f"topic: {name!r} has the cleanup.policy {policy}; allowed: delete; a compacted topic keeps only the last "
            "row of each session, because sessions are the keys: change the policy, or choose another topic"
        )
    return Topic(name, str(known.cluster_id), str(described.topic_id), count)


def _described(library: ModuleType, admin: Any, name: str) -> Any:
    """The library's description of a topic that exists or was just created."""

    def ask() -> Any:
        futures = admin.describe_topics(library.TopicCollection([name]), request_timeout=_ANSWER_SECONDS)
        return futures[name].result(2 * _ANSWER_SECONDS)

    return _once_known(library, ask)


def _once_known(library: ModuleType, ask: Callable[[], Any]) -> Any:
    """An answer about a topic that exists or was just created, which the broker acknowledges before it can answer."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return ask()
        except library.KafkaException as error:
            unknown = error.args[0].code() == library.KafkaError.UNKNOWN_TOPIC_OR_PART
            if not unknown or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _cleanup_policy(library: ModuleType, admin: Any, name: str) -> str:
    """Empty if the broker does not allow the question, which needs the right DescribeConfigs, or has no answer."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    topic = ConfigResource(ResourceType.TOPIC, name)

    def ask() -> Any:
        return admin.describe_configs([topic], request_timeout=_ANSWER_SECONDS)[topic].result(2 * _ANSWER_SECONDS)

    try:
        found = _once_known(library, ask)
    except library.KafkaException as error:
        if error.args[0].code() not in (
            library.KafkaError.TOPIC_AUTHORIZATION_FAILED, library.KafkaError.CLUSTER_AUTHORIZATION_FAILED
        ):  # fmt: skip
            raise
        _log.warning("topic's configuration not readable", topic=name, reason=reason(error))
        return ""
    # Other implementations of Kafka's protocol do not have all settings.
    policy = found.get("cleanup.policy")
    return str(policy.value) if policy is not None else ""


def reason(error: Exception) -> str:
    """The text of one of the library's errors."""
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(first)
