"""The gate: a pure rule that decides whether a new model may become champion."""

from __future__ import annotations

from elastrec.platform.jobs.types import GateDecision, ModelScore
from elastrec.platform.specs.job import Gate


def decide(
    gate: Gate,
    candidate: ModelScore,
    champion: ModelScore | None,
    *,
    champion_version: str = "",
    champion_problem: str = "",
    later_data: str = "",
    model_uri: str = "",
    head: str = "",
) -> GateDecision:
    """Compares two scores measured on the same rows.

    The candidate passes when its AUC, if its label has one, reaches `gate.minimum_auc` and `gate.metric` is at most
    `gate.tolerance` worse than the champion's (AUC: higher is better; the others: lower is better). A champion that
    cannot read today's rows any more (`champion_problem`), or lacks the metric, is ignored. A candidate on whose rows
    the metric is not defined does not pass: nothing is known of it.

    The model of an older day, which was trained again or late, must be better than a champion of later days, because
    what is accepted of a new day's model, to be slightly worse or not comparable, would replace new data by old.

    Args:
        later_data: the end of the rows that the champion was trained on, if that is after the candidate's; else empty.
    """

    def decision(passed: bool, reason: str) -> GateDecision:
        return GateDecision(
            passed=passed,
            reason=reason,
            candidate=candidate,
            champion=champion,
            champion_version=champion_version,
            model_uri=model_uri,
            head=head,
        )

    new = _figure(gate, candidate)
    if new is None:
        return decision(False, _undefined(gate, candidate))
    if candidate.auc is not None and candidate.auc < gate.minimum_auc:
        return decision(False, f"AUC {candidate.auc:.5f} is below the minimum of {gate.minimum_auc:g}")
    if champion is None:
        if champion_problem:
            words = f"the champion could not be scored on these rows ({champion_problem})"
            return decision(not later_data, f"{words}{_beside(later_data)}")
        reached = "" if candidate.auc is None else f"AUC {candidate.auc:.5f} reaches the minimum; "
        return decision(True, f"{reached}there is no champion yet")
    old = _figure(gate, champion)
    if old is None:
        return decision(not later_data, f"the champion has no {gate.metric} on these rows{_beside(later_data)}")
    loss = old - new if gate.metric == "auc" else new - old
    words = f"{gate.metric} {new:.5f} against the champion's {old:.5f} on the same {candidate.samples} rows"
    if loss > gate.tolerance:
        return decision(False, f"{words}: worse by {loss:.5f}, more than the tolerance of {gate.tolerance:g}")
    if loss < 0:
        return decision(True, f"{words}: better by {-loss:.5f}")
    if later_data:
        return decision(False, f"{words}: not better{_beside(later_data)}")
    return decision(True, f"{words}: within the tolerance of {gate.tolerance:g}")


def _beside(later_data: str) -> str:
    return f", and it was trained on later rows than this model, until {later_data}" if later_data else ""


def _undefined(gate: Gate, candidate: ModelScore) -> str:
    figures = "the normalised error is" if gate.metric == "normalized_error" else "AUC and normalised entropy are"
    rows = f"on the {candidate.samples:,} evaluation rows"
    label = "" if candidate.only_label is None else f", because all of them have the label {candidate.only_label:g}"
    return (
        f"{figures} not defined {rows}{label}. The model was not compared; evaluate the next one on rows with several "
        "labels, or set the alias `champion` in MLflow by hand"
    )


def _figure(gate: Gate, score: ModelScore) -> float | None:
    figures = {
        "auc": score.auc,
        "normalized_entropy": score.normalized_entropy,
        "normalized_error": score.normalized_error,
    }
    return figures[gate.metric]
