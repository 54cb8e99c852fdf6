"""Converts a plan, of a round or of the master itself, to a request to a job's master."""

from __future__ import annotations

from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.observer import ChangeShape


def request_of(plan: Plan) -> ChangeShape:
    """A request with only the fields that change, so that open requests for other fields stay open."""
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
