"""Models in MLflow's registry: versions with the gate's figures, and the champion.

MLflow cannot move an alias on the condition that nobody else has moved it. So versions that are to become champion take
turns: each sets a tag, then reads the tags of all versions, and moves the alias only if it sees no other tag. Of two
versions, at least the one that reads last sees the tag of the other (Dekker's mutual exclusion).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from elastrec.platform.history.connection import Connection
from elastrec.platform.history.records import TAG_GATE, TAG_GATE_REASON, TAG_TURN, tag_text

if TYPE_CHECKING:
    # At run time jobs import history.
    from elastrec.platform.jobs.types import GateDecision, ModelScore

_log = structlog.get_logger(__name__)

CHAMPION = "champion"
_TURN_SECONDS = 30.0
"""A version that others wait for as long as this was left by a process that was killed; a turn takes some requests."""
_POLL_SECONDS = 0.1


class Champion(msgspec.Struct, frozen=True):
    """The version of a registered model that has the alias `champion`.

    Attributes:
        model_uri: `models:/name/version`, fixed to this version.
        run_id: of the job that trained it.
        gate_reason: why it has passed the gate; empty if it has not, and somebody has made it champion.
    """

    name: str
    version: str
    model_uri: str
    run_id: str
    gate_reason: str = ""


class ModelRegistry(Connection):
    """Reads and writes the registered models of an MLflow server.

    Every method raises HistoryError when the server cannot be reached or refuses.
    """

    def champion(self, model_name: str) -> Champion | None:
        """The registered model's current champion; None if the model or the alias does not exist."""
        from mlflow.exceptions import MlflowException

        with self._explained(f"look for the champion of {model_name!r}"):
            try:
                version = self._client.get_model_version_by_alias(model_name, CHAMPION)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND"):
                    return None
                raise
        number = str(version.version)
        reason = version.tags.get(TAG_GATE_REASON, "") if version.tags.get(TAG_GATE) == "passed" else ""
        return Champion(model_name, number, f"models:/{model_name}/{number}", version.run_id or "", reason)

    def register(self, model_name: str, model_uri: str, run_id: str, decision: GateDecision) -> str:
        """Registers a logged model as a new version, with the gate's figures as tags; returns the version.

        Idempotent: a run has one version. If the run's model was exported again, after a caller was interrupted or to
        compare it with another champion, its version stays, because both have the same parameters, and gets the tags of
        the new decision. Of two concurrent callers, the later one deletes its version and returns the earlier one,
        because MLflow does not ensure that a run has only one.
        """
        from mlflow.exceptions import MlflowException

        with self._explained(f"register {model_uri} as {model_name!r}"):
            try:
                self._client.create_registered_model(model_name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            tags = {
                TAG_GATE: "passed" if decision.passed else "refused",
                TAG_GATE_REASON: tag_text(decision.reason),
                **{name: f"{value:.6f}" for name, value in compared_figures(decision.candidate).items()},
            }
            if before := self._versions(model_name, run_id):
                self._retag(before[0], tags)
                return str(before[0].version)
            created = self._client.create_model_version(
                model_name,
                model_uri,
                run_id,
                tags=tags,
                description=tag_text(decision.reason),
                model_id=logged_model_id(model_uri),
            )
            first, mine = str(self._versions(model_name, run_id)[0].version), str(created.version)
            if mine != first:
                self._client.delete_model_version(model_name, mine)
        return first

    def _retag(self, version: Any, tags: Mapping[str, str]) -> None:
        number, changed = str(version.version), dict(tags.items() - version.tags.items())
        for key, value in changed.items():
            self._client.set_model_version_tag(version.name, number, key, value)
        if TAG_GATE_REASON in changed:
            self._client.update_model_version(version.name, number, changed[TAG_GATE_REASON])

    def _versions(self, model_name: str, run_id: str) -> list[Any]:
        """Versions of one run, the earliest first."""
        found = self._client.search_model_versions(f"run_id = '{run_id}'")
        return sorted((each for each in found if each.name == model_name), key=lambda each: int(each.version))

    def promote(self, model_name: str, version: str, judged_against: str) -> Champion | None:
        """Moves the alias `champion` to a version, unless another has got it since the gate's comparison.

        Args:
            judged_against: version of the champion in that comparison; empty: there was none.

        Returns:
            The champion that stays; None if this version is champion now.
        """
        with self._explained(f"make version {version} of {model_name!r} champion"), self._turn(model_name, version):
            champion = self.champion(model_name)
            if champion is not None and champion.version not in (judged_against, version):
                return champion
            self._client.set_registered_model_alias(model_name, CHAMPION, version)
        _log.info("champion moved", model=model_name, version=version)
        return None

    @contextmanager
    def _turn(self, model_name: str, version: str) -> Iterator[None]:
        """No other version of the model has its turn during the block."""
        mine, watch = uuid.uuid4().hex, _Watch()
        try:
            self._client.set_model_version_tag(model_name, version, TAG_TURN, mine)
            while others := self._turns(model_name, version):
                if min(others) < int(version):
                    # Of two versions that see each other, the later one waits without a tag.
                    self._end_turn(model_name, int(version), mine)
                    while (others := self._turns(model_name, version)) and min(others) < int(version):
                        self._await(model_name, others, watch)
                    self._client.set_model_version_tag(model_name, version, TAG_TURN, mine)
                else:
                    self._await(model_name, others, watch)
            yield
        finally:
            self._end_turn(model_name, int(version), mine)

    def _turns(self, model_name: str, version: str) -> dict[int, str]:
        """The tags of other versions, by version."""
        found = self._client.search_model_versions(f"tags.`{TAG_TURN}` LIKE '%'")
        # A tag may be removed between MLflow's search and its reading of the tags.
        return {
            int(each.version): each.tags[TAG_TURN]
            for each in found
            if each.name == model_name and str(each.version) != version and TAG_TURN in each.tags
        }

    def _await(self, model_name: str, others: Mapping[int, str], watch: _Watch) -> None:
        for other, tag in watch.left_behind(others):
            _log.warning("turn of a killed process ended", model=model_name, version=other)
            self._end_turn(model_name, other, tag)
        time.sleep(_POLL_SECONDS)

    def _end_turn(self, model_name: str, version: int, tag: str) -> None:
        """Removes a tag, unless another process has set its own: two callers may register one version."""
        from mlflow.exceptions import MlflowException

        if self._client.get_model_version(model_name, str(version)).tags.get(TAG_TURN) != tag:
            return
        try:
            self._client.delete_model_version_tag(model_name, str(version), TAG_TURN)
        except MlflowException as error:
            # Another process may have removed it meanwhile.
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise


class _Watch:
    """Since when each tag of another version has been seen, on the clock of this process."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, str], float] = {}

    def left_behind(self, others: Mapping[int, str]) -> list[tuple[int, str]]:
        """Tags that have been there for longer than any turn takes."""
        now = time.monotonic()
        self._since = {each: self._since.get(each, now) for each in others.items()}
        return [each for each, since in self._since.items() if now - since > _TURN_SECONDS]


def compared_figures(score: ModelScore) -> dict[str, float]:
    """The figures that a gate may compare, if they are defined."""
    figures = {
        "auc": score.auc,
        "normalized_entropy": score.normalized_entropy,
        "normalized_error": score.normalized_error,
    }
    return {name: value for name, value in figures.items() if value is not None}


def logged_model_id(model_uri: str) -> str | None:
    """Id of the logged model behind `models:/m-...`; None for other URIs."""
    return model_uri.removeprefix("models:/") if model_uri.startswith("models:/m-") else None
