"""Changes of a running job's shape: more or fewer pods, more or fewer cores. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.effects import Decided, Effect, ResizePod
from elastrec.platform.master.events import ShapeAsked
from elastrec.platform.master.membership import Member
from elastrec.platform.specs.metrics import Role

if TYPE_CHECKING:
    from elastrec.platform.master.state import JobState


def shape_asked(state: JobState, event: ShapeAsked, effects: list[Effect]) -> None:
    if state.phase.is_final:
        return
    effects.append(
        Decided(
            decision="shape_asked",
            inputs={name: value for name, value in msgspec.structs.asdict(event).items() if value is not None},
        )
    )
    for role, cores in ((Role.WORKER, event.worker_cores), (Role.PARAMETER_SERVER, event.parameter_server_cores)):
        for member in state.membership.members.values():
            if cores is not None and member.role is role and member.cores != cores:
                _resize(state, member, cores, effects)
    if event.workers is not None:
        _set_workers(state, event.workers, event.worker_cores, effects)
    if event.parameter_servers is not None and event.parameter_servers != len(state.membership.servers()):
        # Rows change their owners only while everybody stands still on a complete record.
        state.wanted_servers = event.parameter_servers
        state.phases.save_asked = True


def _resize(state: JobState, member: Member, cores: float, effects: list[Effect]) -> None:
    spent = state.membership.spent(member.role, state.time)
    state.membership.usage[member.role] = spent
    for other in state.membership.members.values():
        if other.role is member.role:
            other.created = state.time
    member.cores = cores
    effects.append(ResizePod(name=member.name, cores=cores, memory_bytes=member.memory_bytes))


def _set_workers(state: JobState, wanted: int, cores: float | None, effects: list[Effect]) -> None:
    staying = sorted((w for w in state.membership.workers() if not w.retiring), key=lambda worker: worker.index)
    for worker in staying[wanted:]:
        worker.retiring = True
    taken = {worker.index for worker in state.membership.workers()}
    free = (index for index in range(len(taken) + wanted) if index not in taken)
    places = state.plan.workers
    size = cores or (staying[0].cores if staying else places.cores)
    for _ in range(wanted - len(staying)):
        effects.append(state.membership.add(Role.WORKER, next(free), size, places.memory_bytes, state.time))
    state.phases.version += 1
