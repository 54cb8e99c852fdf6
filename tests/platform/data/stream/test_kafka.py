"""A log sent through a real broker and landed gives the same training as a converted one; errors are refused."""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from elastrec.platform.cli.app import root
from elastrec.platform.data.convert import ByTime, convert
from elastrec.platform.data.stream import broker as broker_module
from elastrec.platform.data.stream.broker import RESERVED, describe_topic, read_settings
from elastrec.platform.data.stream.consuming import PartitionLog
from elastrec.platform.data.stream.landing import land
from elastrec.platform.data.stream.partitioning import partitions_of
from elastrec.platform.data.stream.publishing import publish
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, TransportError
from tests.platform.data.stream.rows import change, small_log
from tests.processes import wait_for
from tools.kafka.broker import Broker, BrokerError, fetch_jars, missing_program

pytestmark = pytest.mark.services

HAS_CLIENT = importlib.util.find_spec("confluent_kafka") is not None
missing = "confluent-kafka (extra kafka)" if not HAS_CLIENT else missing_program()
with_broker = pytest.mark.skipif(bool(missing), reason=f"{missing} is not installed")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    try:
        fetch_jars()
    except BrokerError as error:
        pytest.skip(f"Kafka cannot be fetched: {error}")
    with Broker() as made:
        yield made


def rows_of(folder: Path) -> pa.Table:
    """All rows below a folder, in one order."""
    table = pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("day=*/*.parquet")))
    return table.sort_by("when")


@with_broker
@pytest.mark.parametrize("text", [False, True], ids=["integer", "text"])
def test_landing_equals_a_conversion_and_keeps_each_session_in_one_partition(
    broker: Broker, tmp_path: Path, text: bool
) -> None:
    data, topic = small_log(tmp_path / "log", text=text), f"equal-{text}"
    sent = publish(data, topic, servers=broker.servers, topic_partitions=3)
    assert sent.rows == 2_000 and min(sent.partition_rows) > 0
    report = land(data, topic, str(tmp_path / "landed"), servers=broker.servers)
    convert(data, str(tmp_path / "converted"), layout=ByTime())
    assert rows_of(tmp_path / "landed").equals(rows_of(tmp_path / "converted"))
    assert tuple(each.rows for each in report.landed) == sent.partition_rows
    assert report.data.path == str(tmp_path / "landed") and report.data.partitioning == "day"
    for partition in range(3):
        files = sorted((tmp_path / "landed").glob(f"day=*/kafka-{partition:05d}-*"))
        assert len(files) == 2
        for file in files:
            table = pq.read_table(file)
            keys = [str(each).encode() for each in pc.unique(table["visit"]).to_pylist()]
            assert set(partitions_of(keys, 3).tolist()) == {partition}
            assert (np.diff(np.asarray(table["when"])) > 0).all()


@with_broker
def test_landing_continues_after_landed_messages_even_if_the_broker_was_killed(broker: Broker, tmp_path: Path) -> None:
    data = small_log(tmp_path / "log", rows=500)
    for begin in (0, 500):
        publish(data, "again", servers=broker.servers, topic_partitions=2)
        report = land(data, "again", str(tmp_path / "landed"), servers=broker.servers)
        assert sum(each.rows for each in report.landed) == 500 and report.record.rows == begin + 500
        assert not land(data, "again", str(tmp_path / "landed"), servers=broker.servers).landed
        if not begin:
            broker.kill()
            broker.start()
    assert rows_of(tmp_path / "landed").num_rows == 1_000


@with_broker
def test_transaction_marks_and_aborted_messages_are_not_landed(broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    data = small_log(tmp_path / "log", rows=100)
    publish(data, "marked", servers=broker.servers, topic_partitions=1)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": "other", "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("marked", b"never a row", b"1")
    producer.flush()
    folder = str(tmp_path / "landed")
    open_still = land(data, "marked", folder, servers=broker.servers)
    assert open_still.record.rows == 100 and open_still.record.next_offsets == {0: 100}
    producer.abort_transaction()
    # The broker writes the marker after its answer.
    with closing(PartitionLog("marked", 0, broker.servers, {})) as log:
        wait_for(lambda: log.bounds() == (0, 102), 30, "the marker of the aborted transaction")
    assert land(data, "marked", folder, servers=broker.servers).record.next_offsets == {0: 102}
    assert not land(data, "marked", folder, servers=broker.servers).landed


@with_broker
def test_the_id_of_a_brokers_cluster_may_begin_with_a_hyphen(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID("f8000000-0000-4000-8000-000000000001"))
    with Broker() as other:
        described = describe_topic(other.servers, "clicks", {}, create_partitions=1)
    assert described.cluster_id.startswith("-")


@with_broker
def test_other_producers_with_kafkas_partitioner_choose_the_same_partitions(broker: Broker) -> None:
    from confluent_kafka import Producer

    describe_topic(broker.servers, "other-producers", {}, create_partitions=5)
    found: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.servers, "partitioner": "murmur2"})
    keys = [str(number**5).encode() for number in range(100)]
    for key in keys:
        producer.produce(
            "other-producers", b"", key, on_delivery=lambda _, sent: found.update({sent.key(): sent.partition()})
        )
    producer.flush()
    assert [found[key] for key in keys] == partitions_of(keys, 5).tolist()


@with_broker
def test_a_topic_that_is_not_as_expected_is_refused_before_anything_is_sent(broker: Broker, tmp_path: Path) -> None:
    data = small_log(tmp_path / "log", rows=20)
    with pytest.raises(DataError, match="'nowhere' does not exist"):
        publish(data, "nowhere", servers=broker.servers)
    with pytest.raises(DataError, match=r"'nowhere' does not exist.*`elastrec data publish --partitions NUMBER`"):
        land(data, "nowhere", str(tmp_path / "landed"), servers=broker.servers)
    describe_topic(broker.servers, "narrow", {}, create_partitions=2)
    with pytest.raises(DataError, match="has 2 partitions, not 4"):
        publish(data, "narrow", servers=broker.servers, topic_partitions=4)
    with pytest.raises(DataError, match=r"Kafka settings: .*no\.such"):
        publish(data, "narrow", servers=broker.servers, settings={"no.such": "1"})
    assert not land(data, "narrow", str(tmp_path / "landed"), servers=broker.servers).landed


@with_broker
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_keeps_only_one_row_of_each_session_is_refused(
    broker: Broker, tmp_path: Path, policy: str
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    data, name = small_log(tmp_path / "log", rows=20), policy.replace(",", "-")
    topic = NewTopic(name, num_partitions=1, replication_factor=1, config={"cleanup.policy": policy})
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([topic])[name].result(10)
    with pytest.raises(DataError, match=f"cleanup.policy {policy}; allowed: delete"):
        publish(data, name, servers=broker.servers)
    with pytest.raises(DataError, match=f"cleanup.policy {policy}; allowed: delete"):
        land(data, name, str(tmp_path / "landed"), servers=broker.servers)


@with_broker
@pytest.mark.parametrize("code", ["TOPIC_AUTHORIZATION_FAILED", "INVALID_REQUEST"])
def test_a_topic_whose_configuration_a_user_may_not_read_is_described(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    def refused(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(getattr(KafkaError, code)))

    assert describe_topic(broker.servers, "closed", {}, create_partitions=1).partitions == 1
    monkeypatch.setattr(AdminClient, "describe_configs", refused)
    if code == "TOPIC_AUTHORIZATION_FAILED":
        assert describe_topic(broker.servers, "closed", {}).partitions == 1
        return
    with pytest.raises(TransportError, match="check the address"):
        describe_topic(broker.servers, "closed", {})


@with_broker
def test_a_broker_without_the_setting_is_used(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient, ConfigResource

    def nothing(_: AdminClient, topics: list[ConfigResource], **__: object) -> dict[ConfigResource, object]:
        answer: Future[dict[str, object]] = Future()
        answer.set_result({})
        return {topics[0]: answer}

    monkeypatch.setattr(AdminClient, "describe_configs", nothing)
    assert describe_topic(broker.servers, "other-kind", {}, create_partitions=1).partitions == 1


@with_broker
def test_a_row_that_the_broker_refuses_ends_the_sending(broker: Broker, tmp_path: Path) -> None:
    data = small_log(tmp_path / "log", rows=20)
    change(data, "history", pa.array([[2**40 + number for number in range(200)] for _ in range(10)]))
    with pytest.raises(TransportError, match=r"not acknowledged .*1,8\d\d bytes.*; of 10 rows sent"):
        publish(data, "small", servers=broker.servers, topic_partitions=1, settings={"message.max.bytes": "1000"})


@with_broker
def test_the_commands_send_a_log_and_land_it_with_a_job_file(broker: Broker, tmp_path: Path) -> None:
    data = small_log(tmp_path / "log", rows=300)
    description = tmp_path / "data.yaml"
    description.write_text(yaml.safe_dump({"kind": "TrainingJob", "spec": {"data": data.model_dump(mode="json")}}))
    run = CliRunner().invoke
    arguments = [str(tmp_path / "log"), "commands", "-d", str(description), "--brokers", broker.servers]
    sent = run(root, ["data", "publish", *arguments, "--partitions", "2", "-o", "json"], catch_exceptions=False)
    assert json.loads(sent.stdout)["rows"] == 300
    landing = [
        "data",
        "land",
        "commands",
        str(tmp_path / "landed"),
        "-d",
        str(description),
        "--brokers",
        broker.servers,
    ]
    assert "train on it: elastrec run" in run(root, landing, catch_exceptions=False).output
    job = yaml.safe_load((tmp_path / "landed" / "job.yaml").read_text())
    read = TrainingData.model_validate(job["spec"]["data"])
    assert read.path == str(tmp_path / "landed") and rows_of(tmp_path / "landed").num_rows == 300
    # The job file beside the files describes them from now on.
    later = run(root, [*landing[:4], *landing[6:]], catch_exceptions=False)
    assert "nothing new" in later.output


@pytest.mark.skipif(not HAS_CLIENT, reason="confluent-kafka (extra kafka) is not installed")
def test_a_broker_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_ANSWER_SECONDS", 0.5)
    data = small_log(tmp_path / "log", rows=20)
    with pytest.raises(TransportError, match=r"Kafka at 127\.0\.0\.1:1: "):
        publish(data, "clicks", servers="127.0.0.1:1", topic_partitions=1)


@pytest.mark.skipif(HAS_CLIENT, reason="confluent-kafka is installed")
def test_without_the_client_library_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pip install 'elastrec\[kafka\]'"):
        publish(small_log(tmp_path / "log", rows=20), "clicks", servers="127.0.0.1:1")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"topic: .* is not allowed"):
        describe_topic("127.0.0.1:1", name, {})


def test_settings_are_read_from_a_properties_file_but_not_those_that_exactly_once_needs(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\nsecurity.protocol = SSL\n\nssl.ca.location=/etc/ca=1.pem\n")
    assert read_settings(str(file)) == {"security.protocol": "SSL", "ssl.ca.location": "/etc/ca=1.pem"}
    for text, said in (("nothing", "line 1 is not allowed"), ("acks=0", "acks is not allowed")):
        file.write_text(text)
        with pytest.raises(DataError, match=said):
            read_settings(str(file))
    assert "acks" in RESERVED
