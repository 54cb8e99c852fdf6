"""`plan`: shows the plans of one scaling round for the running jobs, with reasons; changes jobs only with `--apply`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from elastrec.platform import jobs
from elastrec.platform.cli.commands.status import NO_JOBS, pods_of
from elastrec.platform.cli.completion import running_jobs
from elastrec.platform.cli.options import echo_json, output_option, wide_console

if TYPE_CHECKING:
    from elastrec.platform.jobs.scaling.rounds import Applied
    from elastrec.platform.scaling.job_profile import NotNow
    from elastrec.platform.scaling.policy import Round
    from elastrec.platform.scaling.types import Plan


@click.command()
@click.argument("job", nargs=-1, shell_complete=running_jobs)
@click.option(
    "--settings", "file", type=click.Path(dir_okay=False), help="YAML with policy, prices, shares and priorities."
)
@click.option("--policy", metavar="NAME", help="Decide by this policy instead of the one in the settings.")
@click.option("--explain", is_flag=True, help="Show every candidate, its predicted gain, and why it was chosen or not.")
@click.option("--apply", "applies", is_flag=True, help="Execute the plans.")
@output_option
def plan(job: tuple[str, ...], file: str | None, policy: str | None, explain: bool, applies: bool, output: str) -> None:
    """Show how scaling would change running JOBs.

    The plans are based on the measurements of the JOBs (default: all), which compete for the free cores. Jobs with too
    few measurements are not changed, and the reason is shown.
    """
    from elastrec.platform.jobs.scaling import rounds as scaling
    from elastrec.platform.jobs.scaling import story as scaling_story
    from elastrec.platform.specs.scaling import ScalingSettings, load_scaling

    settings = load_scaling(Path(file)) if file else ScalingSettings()
    if policy:
        settings = settings.model_copy(update={"policy": policy})
    platform = jobs.Platform.from_environment(start=False)
    for name in job:
        pods_of(platform, name)
    decided, left_alone = scaling.plan(platform, settings, list(job) or None)
    applied = [scaling.apply(platform, each) for each in decided.plans] if applies else []
    for each, done in zip(decided.plans if applies else (), applied, strict=True):
        scaling_story.log_decision(platform, each, is_changed=done.changed, reason=done.reason)
    if output == "json":
        echo_json(_plain(decided, left_alone, applied, explain=explain))
        return
    if not decided.plans and not left_alone:
        click.echo(f"{NO_JOBS} that train")
        return
    console = wide_console()
    console.print(_overview(decided, left_alone))
    if explain:
        for each in decided.plans:
            console.print(_candidates(each))
    for job_id, notes in _notes(decided).items():
        click.echo(f"{job_id}: {'; '.join(notes)}")
    for problem in decided.problems.values():
        click.echo(f"left as it is: {problem}", err=True)
    for done in applied:
        click.echo(f"{done.job_id}: {'changing to ' + done.after if done.changed else 'unchanged'} ({done.reason})")


def _overview(decided: Round, left_alone: list[NotNow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("JOB", "NOW", "PLAN", "REASON"):
        table.add_column(heading, overflow="fold")
    for each in decided.plans:
        table.add_row(each.job_id, str(each.before), str(each.allocation) if each.changes else "stay", each.reason)
    for other in left_alone:
        table.add_row(other.job_id, "", "left alone", other.reason)
    return table


def _notes(decided: Round) -> dict[str, list[str]]:
    """Notes by job id about the error of its model, without those that are already in the reason of its plan."""
    reasons = {each.job_id: each.reason for each in decided.plans}
    found = {
        each.job_id: [note for note in each.notes if note not in reasons.get(each.job_id, "")]
        for each in decided.proposals
    }
    return {job_id: notes for job_id, notes in found.items() if notes}


def _candidates(each: Plan) -> Table:
    from elastrec.platform.scaling.explain import rows

    table = Table(title=f"{each.job_id}, policy {each.policy}", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "ALLOCATION", "SAMPLES/S", "±", "GAIN", "COST/H", "VALUE", "WHY"):
        table.add_column(
            heading, justify="right" if heading in ("SAMPLES/S", "±", "GAIN", "COST/H", "VALUE") else "left"
        )
    for row in rows(each):
        table.add_row(
            "→" if row["chosen"] else "",
            str(row["allocation"]),
            f"{row['samples_per_second']:,.0f}",
            f"{row['relative_error']:.0%}",
            f"{row['gain']:+,.0f}",
            f"{row['cost_per_hour']:+.4f}",
            "" if row["value"] is None else f"{row['value']:.3g}",
            str(row["why"]),
        )
    return table


def _plain(decided: Round, left_alone: list[NotNow], applied: list[Applied], *, explain: bool) -> dict[str, Any]:
    from elastrec.platform.scaling.explain import rows

    plans = [
        {
            "job_id": each.job_id,
            "policy": each.policy,
            "before": msgspec.to_builtins(each.before),
            "after": msgspec.to_builtins(each.allocation),
            "changes": sorted(each.changes),
            "reason": each.reason,
            **({"candidates": rows(each)} if explain else {}),
        }
        for each in decided.plans
    ]
    return {
        "plans": plans,
        "left_alone": msgspec.to_builtins(left_alone),
        "notes": {each.job_id: list(each.notes) for each in decided.proposals},
        "problems": decided.problems,
        "applied": msgspec.to_builtins(applied),
    }
