"""Makes the `JobProfile` of a live job from its master's measurements, or returns why there can be no decision now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastrec.platform.jobs.starting.starting_sizes import features_of
from elastrec.platform.master.scaling.facts import facts_of
from elastrec.platform.scaling.across_jobs.quota import Holder
from elastrec.platform.scaling.job_profile import NotNow, decidable
from elastrec.platform.scaling.types import JobProfile
from elastrec.platform.scaling.warm_start import PastJob, prior_of
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Profile


def profile_of(
    job_id: str, profile: Profile, settings: ScalingSettings, past: Sequence[PastJob] = (), largest_bytes: float = 0.0
) -> JobProfile | NotNow:
    """The `JobProfile` for a decision about the job, or the reason why there can be no decision now.

    Args:
        past: finished jobs with their models.
        largest_bytes: the most memory that a server of the job could have.
    """
    job = job_from_json(profile.job_json)
    epoch_rows = round((profile.trained_samples + profile.remaining_samples) / job.spec.training.epochs)
    prior = prior_of(features_of(job, epoch_rows), [each for each in past if each.job_id != job_id])
    known = facts_of(job_id, job, profile, settings, prior=prior, largest_bytes=largest_bytes)
    return known if isinstance(known, NotNow) else decidable(known)


def holders_of(profiles: Iterable[JobProfile | NotNow]) -> list[Holder]:
    """Jobs that can return workers when another team claims its share."""
    holders = []
    for each in profiles:
        if isinstance(each, NotNow):
            holders += [each.holder] if each.holder else []
        else:
            holders.append(
                Holder(
                    job_id=each.job_id,
                    team=each.team,
                    allocation=each.allocation,
                    least_workers=each.limits.workers[0],
                    priority=each.priority,
                )
            )
    return holders
