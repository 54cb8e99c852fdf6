"""Servers in one process that give complete buckets to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.parameter_server.dense.store import DenseStore
from elastrec.trainers.parameter_server.serving.place import Place
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.trainers.parameter_server.storage.copies import copied, take


def hand_over(servers: Sequence[ParameterServer], after: RoutingTable, generation: int = 1) -> None:
    """Gives virtual and dense buckets, rows and marks, to their owners under another routing table."""
    frozen = {server.name: server.freeze() for server in servers if server.ready}
    for each in frozen.values():
        each.thaw()
    marks = [table for each in frozen.values() for table in each.marks]
    rows = [copied(server.stores[0]) for server in servers if server.ready]
    dense = {name: each.dense for name, each in frozen.items() if each.dense is not None}
    places = {name: Place.under(after, name) for name in after.servers}
    for server in servers:
        if server.name not in places:
            server.forget()
            continue
        place = places[server.name]
        stores = server.empty_stores(place)
        for chunks in rows:
            take(stores[0], chunks)
        server.become(place, after, generation, stores, _dense_of(server, place, dense), None, marks)


def _dense_of(server: ParameterServer, place: Place, dense: dict[str, DenseStore]) -> DenseStore | None:
    if not dense:
        return None
    layout = next(iter(dense.values())).layout
    nothing = np.zeros(len(place.dense_owned), np.bool_), np.empty(0, np.float32)
    store = (
        dense[server.name].copy()
        if server.name in dense
        else DenseStore(layout, *nothing, server.spec.optimizers.dense)
    )
    store.drop(np.flatnonzero(store.owned & ~place.dense_owned).tolist())
    for name, source in dense.items():
        if name != server.name:
            store.take_in(source.copies(np.flatnonzero(source.owned & place.dense_owned).tolist()))
    return store
