"""Routing tables as pods receive them."""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.messages.directive import RoutingTable


def test_without_named_owners_each_server_gets_neighbouring_dense_buckets() -> None:
    before = {"epoch": 3, "owners": [0, 1, 2, 0, 1, 2, 0], "servers": ["a", "b", "c"], "addresses": ["", "", ""]}
    table = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=RoutingTable)
    assert table.dense_owners == [0, 0, 0, 1, 1, 2, 2]


def test_the_owners_of_dense_buckets_travel_with_the_table() -> None:
    table = RoutingTable(epoch=1, owners=[0, 1], servers=["a", "b"], addresses=["", ""], dense_owners=[1, 0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=RoutingTable) == table
    assert table.dense_owners == [1, 0]


def test_a_table_without_servers_has_no_buckets() -> None:
    assert RoutingTable(epoch=1, owners=[], servers=[], addresses=[]).dense_owners == []


def test_owners_without_servers_give_the_dense_buckets_none() -> None:
    assert RoutingTable(epoch=1, owners=[0, 0], servers=[], addresses=[]).dense_owners == []
