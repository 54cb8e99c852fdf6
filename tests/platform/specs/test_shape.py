from __future__ import annotations

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange, Shape, named_fields
from tests.shapes import change, shape


def test_a_change_keeps_fields_that_it_does_not_name():
    wanted = shape(2, 3).changed({Role.WORKER: PlacesChange(count=4), Role.PARAMETER_SERVER: PlacesChange(cores=0.5)})
    assert wanted == shape(4, 3, parameter_server_cores=0.5)
    assert wanted.changed({}) == wanted


def test_equal_shapes_are_equal_keys_also_after_decoding():
    first = shape(2, 3)
    second = msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=Shape)
    assert {first: 1}[second] == 1 and hash(first) == hash(second)


def test_fields_of_a_change_have_the_names_that_people_read():
    assert named_fields(change(workers=3, parameter_server_cores=0.5)) == {"workers": 3, "parameter_server_cores": 0.5}
