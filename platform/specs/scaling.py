"""What people say about scaling: bounds in a job file, and one file of prices and priorities for a whole cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.elasticity import Prices
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.loading import parse_mapping, validate
from elastrec.platform.specs.text.quantities import Seconds

Share = Annotated[float, Field(ge=0, lt=1)]


class Team(Spec):
    """What a team owns of the cluster, and how its jobs count against those of others."""

    priority: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Of the team's jobs when they compete for the same cores: 2 counts as half of the time left; 1 is normal."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of the cluster's cores and memory, what the team may have whenever it asks. Its jobs also grow into what others
    leave idle, and give that back within one round when the others ask for their share. Shares add up to at most 1."""
    minimum_workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """No job of the team is made smaller than this; a job file may ask for more in spec.scaling.minimum_workers."""


class ScalingSettings(Spec):
    """How the jobs of one cluster are scaled while they run.

    The defaults are those of all rules, weights and strategies, of live and of simulated jobs. «Chosen» ones were
    chosen after simulations on seeds from which no published figure comes.
    """

    policy: Annotated[str, Field(min_length=1)] = "three-stage"
    """`three-stage`, `three-stage-exact`, `optimus`, `optimus-greedy`, `elastic-scheduler`, `static`, one that a
    package registers, or `FILE.py:CLASS`, a file of your own, relative to this one."""
    prices: Prices = Prices(core_hour=0.04, gibibyte_hour=0.005)
    """Plans are weighed by what they cost. Chosen: container services of clouds ask for about as much; only
    the ratio matters."""
    max_slowdown: Share = 0.05
    """Plans that save may cost a job this share of its speed, all of them together. Chosen: as much as the steps of
    undisturbed jobs differ from one window to the next."""
    grow_efficiency: Annotated[float, Field(gt=0, le=2)] = 0.25
    """A plan that costs more must raise the speed by at least this share of what it raises the price, both in
    logarithms: 1 is linear scaling, 0.25 buys 19 % for twice the price. Chosen: the paper has no such limit, and a
    job alone on a cluster would take all of it for the last per cent."""
    save_efficiency: Annotated[float, Field(ge=0, le=2)] = 0.2
    """A plan that saves may lower the speed by at most this share of what it lowers the price. Below `grow_efficiency`,
    or a job would grow and shrink in turn. Chosen: at 0.1 oversized jobs kept cores for which others waited."""
    payback: Annotated[Seconds, Field(ge=0)] = 3600.0
    """A change has so long to pay for its pause and its start, or what is left of the job where that is less. Chosen:
    spread over the three minutes until the next round, a pause of thirty seconds would forbid any change of servers."""
    rho: Annotated[float, Field(ge=-10, le=10)] = 2.5
    """Above 0, jobs that end soon go first when they compete; 0: all are equal; below 0: long ones do. DLRover-RM
    eq. 14 has 2.5."""
    round_interval: Seconds = 180.0
    """Time between two rounds; DLRover-RM §6.2 has three minutes."""
    least_steps: Annotated[int, Field(ge=1)] = 50
    """A job is left alone until its workers have made so many steps in its present configuration, unless its servers
    would run out of memory. Chosen: the mean of fifty steps that differ by a fifth is known within 3 %."""
    cool_down: Seconds = 90.0
    """So long after a change of its shape a job is left alone, unless its servers would run out of memory. Less than
    `round_interval`, or every other round is lost. Chosen: half of one, so that a round that is early by some seconds
    is not lost."""
    no_reversal: Seconds = 900.0
    """So long after a change no plan takes it back, unless it was made only to learn from it. Chosen: five rounds,
    after which two thirds of what was measured before have faded."""
    plan_lifetime: Seconds = 300.0
    """A plan that is older is not carried out: what it was made from has changed. Chosen: longer than a round, so that
    a task that is tried again still delivers it; shorter than two."""
    experiment: Annotated[str, Field(min_length=1)] = "elastrec"
    """MLflow's experiment from whose jobs is learned how long pods take to start on this cluster."""
    teams: dict[str, Team] = Field(default_factory=dict)
    """By the name that job files give in metadata.team; a team that is not listed has priority 1 and no share."""

    @model_validator(mode="after")
    def _saves_less_than_it_grows(self) -> ScalingSettings:
        if self.save_efficiency >= self.grow_efficiency:
            raise ValueError(
                f"save_efficiency {self.save_efficiency:g} is not below grow_efficiency {self.grow_efficiency:g}: "
                "a job would grow and shrink in turn; lower save_efficiency"
            )
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> ScalingSettings:
        if (together := sum(team.share for team in self.teams.values())) > 1 + 1e-9:
            raise ValueError(f"the shares of teams add up to {together:.4g}, more than the cluster; lower some")
        return self


def load_scaling(file: Path) -> ScalingSettings:
    """The settings in a YAML file.

    Raises:
        SpecError: the file cannot be read, is no YAML, or fields are wrong; all problems are named.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = FieldProblem("file", f"{str(file)!r} ({error})", "a readable YAML file in UTF-8", "check the path")
        raise SpecError([problem], str(file)) from None
    settings = validate(ScalingSettings, parse_mapping(text, str(file)), str(file))
    return settings.model_copy(update={"policy": beside(settings.policy, file)})


def names_a_file(policy: str) -> bool:
    """Whether it is `FILE.py:CLASS` and not the name of a registered policy."""
    return ".py:" in policy


def beside(policy: str, settings: Path) -> str:
    """A policy's name as it stands in a settings file: the path of its own file is relative to that one's folder."""
    if not names_a_file(policy):
        return policy
    path, _, symbol = policy.rpartition(":")
    return f"{(settings.parent / path).absolute()}:{symbol}"
