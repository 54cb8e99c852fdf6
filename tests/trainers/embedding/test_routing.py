from __future__ import annotations

import msgspec
import numpy as np
import pytest

from elastrec.platform.specs.job import TableSpec
from elastrec.platform.transport.wire.frames import ALIGNMENT_BYTES, Layout, empty_body
from elastrec.trainers.embedding.routing import Router
from elastrec.trainers.parameter_server.plan import make_plan


@pytest.mark.parametrize("servers", [1, 3, 20])
@pytest.mark.parametrize("tables", [1, 5, 16])
@pytest.mark.parametrize("values", [0, 1, 400])
def test_the_request_to_a_server_has_its_counts_and_its_ids(values: int, tables: int, servers: int) -> None:
    # Two groups of tables, unless there is only one table; 16 counts fill a multiple of the alignment.
    settings = {f"t{number}": TableSpec(admit_after=1 + number % 2) for number in range(tables)}
    plan = make_plan({f"t{number}": 4 for number in range(tables)}, settings=settings)
    router = Router(plan, [bucket % servers for bucket in range(256)], servers, epoch=1, generation=1)
    ids = np.random.default_rng(values).integers(0, 1000, tables * values)
    starts = np.arange(tables) * values
    routed = router.route(ids, starts, starts + values, np.arange(tables))

    seen: list[tuple[int, int, int]] = []
    for server, request in enumerate(routed.requests):
        content = b"".join(map(bytes, request.buffers))
        assert len(content) == request.size_bytes and len(content) % ALIGNMENT_BYTES == 0
        body = empty_body(len(content))
        body[:] = np.frombuffer(content, np.uint8)
        counts, mine = Layout("", "", msgspec.Raw(b""), request.arrays).views(body)
        assert (counts.dtype, mine.dtype) == (np.int32, np.int64)
        assert counts.tolist() == routed.counts[server].tolist() and len(mine) == counts.sum()
        seen += [(server, table, each) for table, each in zip(np.repeat(np.arange(tables), counts), mine, strict=True)]
    for table in range(tables):
        sent = [each for _, of_table, each in seen if of_table == table]
        assert sorted(sent) == np.unique(ids[table * values : (table + 1) * values]).tolist()
