"""How far a job may be scaled while it runs, as its job file says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastrec.platform.specs.base import Spec


class Elasticity(Spec):
    """How large a job starts, and bounds of live scaling."""

    start: Literal["job_file", "history"] = "job_file"
    """`job_file`: start with the sizes under `resources`; `history`: with those of similar finished jobs."""
    enabled: bool = True
    """Whether the job takes part in automatic scaling."""
    minimum_workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """It never has fewer workers, even if other jobs need the cores."""
    maximum_workers: Annotated[int, Field(ge=1, le=10_000)] = 64
    """It never has more."""
    minimum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """It never has fewer parameter servers."""
    maximum_parameter_servers: Annotated[int, Field(ge=1, le=10_000)] = 16
    """It never has more, and never more than resources.virtual_buckets."""

    @model_validator(mode="after")
    def _ordered(self) -> Elasticity:
        for pods in ("workers", "parameter_servers"):
            least, most = getattr(self, f"minimum_{pods}"), getattr(self, f"maximum_{pods}")
            if least > most:
                raise ValueError(
                    f"minimum_{pods} {least} is above maximum_{pods} {most}; raise the maximum or lower the minimum"
                )
        return self
