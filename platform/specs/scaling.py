"""Settings of scaling: the file with prices, shares and priorities of a cluster. (Limits of a job are in its job
file.)"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.elasticity import Prices
from elastrec.platform.specs.text.loading import parse_mapping, read_text, validate
from elastrec.platform.specs.text.patterns import Label
from elastrec.platform.specs.text.quantities import Seconds

Share = Annotated[float, Field(ge=0, lt=1)]


class Team(Spec):
    """The team's share of the cluster, and the priority of its jobs."""

    priority: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Priority of the team's jobs when jobs compete for the same cores: 2 has the effect of half of the remaining time;
    1 is normal."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the cluster's cores and memory that the team can always claim. Its jobs may also use what others
    leave idle, and return it within one round when the others claim their share. Shares add up to at most 1."""
    minimum_workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    """No job of the team gets fewer workers; a job file may set a higher minimum in spec.scaling.minimum_workers."""


class ScalingSettings(Spec):
    """How the jobs of one cluster are scaled while they run.

    The defaults are those of all rules, weights and strategies, of live and of simulated jobs. «Chosen» ones were
    chosen after simulations on seeds from which no published figure comes.
    """

    policy: Annotated[str, Field(min_length=1)] = "three-stage"
    """`three-stage`, `three-stage-exact`, `optimus`, `optimus-greedy`, `elastic-scheduler`, `static`, one that a
    package registers, or `FILE.py:CLASS`, a file of your own, relative to this one."""
    prices: Prices = Prices(core_hour=0.04, gibibyte_hour=0.005)
    """Prices for the costs of plans. Chosen: about the prices of cloud container services; only the ratio matters."""
    max_slowdown: Share = 0.05
    """All plans that save resources together may cost a job this share of its speed. Chosen: the difference between the
    steps of undisturbed jobs from one window to the next."""
    grow_efficiency: Annotated[float, Field(gt=0, le=2)] = 0.25
    """A plan that costs more must raise the speed by at least this share of the increase in price, both in logarithms:
    1 is linear scaling, 0.25 requires 19 % more speed for twice the price. Chosen: the paper has no such limit, so a
    job alone on a cluster would take all of it for the last per cent."""
    save_efficiency: Annotated[float, Field(ge=0, le=2)] = 0.2
    """A plan that saves resources may lower the speed by at most this share of the decrease in price. Must be below
    `grow_efficiency`, otherwise a job would grow and shrink in turn. Chosen: at 0.1 oversized jobs kept cores for which
    others waited."""
    payback: Annotated[Seconds, Field(ge=0)] = 3600.0
    """The gain of a change must exceed the cost of its start and pause within this time, or within the remaining time
    of the job if that is shorter. Chosen: if the time were only the three minutes until the next round, a pause of
    thirty seconds would prevent any change of servers."""
    rho: Annotated[float, Field(ge=-10, le=10)] = 2.5
    """Above 0, jobs that end soon have priority; 0: all jobs are equal; below 0: jobs that end late have priority.
    DLRover-RM eq. 14 has 2.5."""
    round_interval: Annotated[Seconds, Field(gt=0)] = 180.0
    """Time between two rounds; DLRover-RM §6.2 has three minutes."""
    least_steps: Annotated[int, Field(ge=1)] = 50
    """A job is not changed until its workers have made this number of steps in its present configuration, unless its
    servers would run out of memory. Chosen: the mean of fifty steps that differ by a fifth is known within 3 %."""
    cool_down: Seconds = 90.0
    """A job is not changed again within this time after a change of its shape, unless its servers would run out of
    memory. Should be less than `round_interval`, otherwise every other round has no effect. Chosen: half of the
    interval, so that a round that starts some seconds early still has an effect."""
    no_reversal: Seconds = 900.0
    """Within this time after a change, no plan reverts it, unless the change was made only to explore. Chosen: five
    rounds, after which earlier measurements have lost two thirds of their weight."""
    plan_lifetime: Annotated[Seconds, Field(gt=0)] = 300.0
    """An older plan is not executed, because the measurements behind it are outdated. Chosen: longer than a round, so
    that a retried task can still deliver the plan; shorter than two rounds."""
    experiment: Annotated[str, Field(min_length=1)] = "elastrec"
    """The MLflow experiment whose jobs show how long pods take to start on this cluster."""
    teams: dict[Label, Team] = Field(default_factory=dict)
    """Teams by their name in metadata.team of job files; a team that is not listed has priority 1 and no share."""

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
    settings = validate(ScalingSettings, parse_mapping(read_text(file), str(file)), str(file))
    return settings.model_copy(update={"policy": beside(settings.policy, file)})


def names_a_file(policy: str) -> bool:
    """Whether it is `FILE.py:CLASS` and not the name of a registered policy."""
    return ".py:" in policy


def beside(policy: str, settings: Path) -> str:
    """The policy named in a settings file; the path of a policy file is relative to the folder of the settings file."""
    if not names_a_file(policy):
        return policy
    path, _, symbol = policy.rpartition(":")
    return f"{(settings.parent / path).absolute()}:{symbol}"
