"""The live path fills in every field of a job that a policy reads, as found by tracing all policies."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import msgspec
import pytest

from elastrec.platform.jobs.scaling.profiles import features_of, profile_of
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.job_profile import JobFacts
from elastrec.platform.scaling.policy import ScalingPolicy, View, load_policy, policy_names, propose_safely
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.types import JobProfile, Limits, Overheads
from elastrec.platform.scaling.warm_start import PastJob
from elastrec.platform.specs.scaling import ScalingSettings, Team
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Profile, ShapeChanged
from tests.platform.jobs.scaling.test_memory_outlook import grown
from tests.platform.jobs.scaling.test_profiles import ONE, TWO, measured_profile
from tests.platform.scaling.jobs import PLENTY, PRICES, allocation, coefficients, profile

SETTINGS = ScalingSettings(teams={"ads": Team(priority=3)})
OUTSIDE_POLICIES = {"memory_wish", "changes", "shape_version"}
"""What is read of a job around every policy: what is urgent, what it may not do again, for whom the plan is."""
LIMITS = {
    "workers": {"minimum": 2, "maximum": 7},
    "parameter_servers": {"minimum": 1, "maximum": 5},
    "worker_cores": {"minimum": 0.3, "maximum": 6.0},
    "worker_memory": {"minimum": 2**29, "maximum": 2**33},
    "parameter_server_cores": {"minimum": 0.4, "maximum": 5.0},
    "parameter_server_memory": {"minimum": 2**28, "maximum": 2**34},
}
"""Of the job file, none of them a default."""


def master() -> Profile:
    """A master that reports all that it can."""
    changed = ShapeChanged(before=TWO, after=ONE, seconds_ago=400.0, asked_by="three-stage")
    bounds = {f"{end}_{field}": value for field, ends in LIMITS.items() for end, value in ends.items()}
    found = grown(remaining=2_000_000_000, shape_changes=[changed], shape_version=4, servers_move=True)
    return msgspec.structs.replace(found, job_json=measured_profile(bounds, worker_count=2).job_json)


def live() -> JobProfile:
    measured = master()
    job = job_from_json(measured.job_json)
    alike = PastJob(
        job_id="clicks-0", features=features_of(job, 3_000_000), allocation=allocation(), coefficients=coefficients()
    )
    found = profile_of("clicks-1", measured, SETTINGS, [alike], 2.0**36)
    assert isinstance(found, JobProfile)
    return found


class Watched:
    """A job or a view that notes what is read of it."""

    def __init__(self, of: Any, read: set[str]) -> None:
        self._of, self._read = of, read

    def __getattr__(self, name: str) -> Any:
        if name in type(self._of).__struct_fields__:
            self._read.add(name)
            if isinstance(getattr(self._of, name), Limits):
                return Watched(self._of.limits, self._read)
        found = getattr(type(self._of), name)
        return MethodType(found, self) if isinstance(found, FunctionType) else getattr(self._of, name)


@pytest.fixture(autouse=True)
def copies_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a job with other values the policy reads what it is made of."""
    replace = msgspec.structs.replace

    def replaced(struct: Any, **fields: Any) -> Any:
        return (
            Watched(replace(struct._of, **fields), struct._read)
            if type(struct) is Watched
            else replace(struct, **fields)
        )

    monkeypatch.setattr(msgspec.structs, "replace", replaced)


def read_by(policy: ScalingPolicy) -> set[str]:
    read = set[str]()
    for job in (profile(), profile(observations=profile().observations[:1]), live()):
        watched: Any = Watched(job, read)
        proposal, problem = propose_safely(policy, watched, View(PLENTY, PRICES))
        assert proposal is not None, problem
        policy.select([proposal], View(PLENTY, PRICES))
    return read


@pytest.mark.parametrize("name", policy_names())
def test_every_field_that_a_policy_reads_is_filled_for_a_live_job(name: str) -> None:
    read = read_by(load_policy(name)) | OUTSIDE_POLICIES
    found = live()
    fields = read & set(JobProfile.__struct_fields__)
    empty = {
        field: getattr(found, field) for field in fields if getattr(found, field) in (None, (), frozenset(), "", 0)
    }
    assert not empty
    assert "allocation" in read


def test_the_policies_together_read_the_whole_profile_and_every_limit() -> None:
    read = set.union(*(read_by(load_policy(name)) for name in policy_names())) | OUTSIDE_POLICIES
    assert {*JobProfile.__struct_fields__, *Limits.__struct_fields__} - read == set(), (
        "what nobody reads need not be made"
    )


def test_every_limit_that_a_policy_reads_is_that_of_the_job_file() -> None:
    found = live()
    for field in Limits.__struct_fields__:
        in_file = LIMITS[field.removesuffix("_bytes")]
        assert getattr(found.limits, field) == (in_file["minimum"], in_file["maximum"]), field
    assert found.movable == frozenset(Change)


def test_facts_of_a_job_have_no_defaults() -> None:
    assert JobFacts.__struct_defaults__ == ()


def test_a_situation_has_nothing_that_a_live_view_leaves_at_a_default_silently() -> None:
    given = {"job", "model", "prices", "overheads", "rules"}
    assert set(Situation.__dataclass_fields__) == given
    assert View.__dataclass_fields__.keys() >= given - {"job", "model"} and Overheads().measured == 0


def test_a_live_job_begins_with_the_model_of_the_most_similar_finished_one() -> None:
    prior = live().prior
    assert prior is not None and (prior.source, prior.coefficients) == ("clicks-0", coefficients())


def test_a_live_jobs_past_changes_reach_the_rules_that_keep_it_in_peace() -> None:
    (change,) = live().changes
    assert (change.before.workers, change.after.workers, change.seconds_ago) == (2, 1, 400.0)
    assert msgspec.json.decode(msgspec.json.encode(live()), type=JobProfile) == live()
