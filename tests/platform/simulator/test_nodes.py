from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.specs.errors import ScalingError

GIB = 2**30
_REQUESTS = st.tuples(
    st.integers(0, 6), st.sampled_from([0.0, 0.25, 1.5, 4.0, 5.25, 8.0, 9.0]), st.sampled_from([0, GIB, 7 * GIB])
)


@given(st.lists(_REQUESTS, max_size=12))
def test_pods_are_placed_on_the_first_nodes_with_room_all_or_none(asked: list[tuple[int, float, int]]) -> None:
    nodes, free = Nodes(3, Resources(8.0, 16 * GIB)), [[8.0, 16 * GIB] for _ in range(3)]
    for pods, cores, memory in asked:
        trial, expected = [list(each) for each in free], list[int]()
        for node, left in enumerate(trial):
            while len(expected) < pods and left[0] >= cores and left[1] >= memory:
                left[0], left[1] = left[0] - cores, left[1] - memory
                expected.append(node)
        found = nodes.place(pods, Resources(cores, memory))
        if len(expected) < pods:
            assert found is None
        else:
            assert found == expected
            free = trial
    assert nodes.free == Resources(sum(left[0] for left in free), sum(left[1] for left in free))


def test_cores_that_rounding_left_count_as_free() -> None:
    nodes = Nodes(1, Resources(0.9, GIB))
    third = Resources(0.3, 1)
    assert nodes.place(1, third) == nodes.place(1, third) == [0]
    nodes.give_back([0, 0], third)
    assert nodes.place(3, third) == [0, 0, 0]
    with pytest.raises(ScalingError, match="never placed"):
        nodes.give_back([0] * 4, third)
