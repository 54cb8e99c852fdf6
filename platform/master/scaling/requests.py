"""A plan as the request to a job's master: of a round, and of the master itself."""

from __future__ import annotations

from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.observer import ChangeShape


def request_of(plan: Plan) -> ChangeShape:
    """What differs, and nothing else: an open request that names something else stays open beside this one."""
    before, after = plan.before, plan.allocation

    def places(role: str, count: str) -> PlacesChange:
        names = {"count": count, "cores": f"{role}_cores", "memory_bytes": f"{role}_memory_bytes"}
        return PlacesChange(
            **{
                field: getattr(after, name)
                for field, name in names.items()
                if getattr(after, name) != getattr(before, name)
            }
        )

    return ChangeShape(
        change={
            Role.WORKER: places("worker", "workers"),
            Role.PARAMETER_SERVER: places("parameter_server", "parameter_servers"),
        },
        plan_id=plan.plan_id,
        expected_version=plan.shape_version,
        asked_by=plan.asked_by,
        reason=plan.reason,
    )
