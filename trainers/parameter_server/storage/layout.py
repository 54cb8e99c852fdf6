"""The layout of the words of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from elastrec.trainers.parameter_server.storage.kernels.arrays import REST

CANDIDATE_WORDS = 5


@dataclass(frozen=True)
class RowLayout:
    """Positions in a row's cell: id, version, table, last sighting if it is kept, state [S], values [D].

    State and values contain one segment after the other. `row_state` names the numbers of the state.

    Attributes:
        dimension, states: D, S.
        keeps_seen: whether cells hold the time of the last sighting.
    """

    dimension: int
    states: int
    keeps_seen: bool

    @property
    def seen_word(self) -> int:
        """The word of the last sighting; 0: it is not kept."""
        return REST if self.keeps_seen else 0

    @property
    def state_word(self) -> int:
        return REST + self.keeps_seen

    @property
    def value_word(self) -> int:
        return self.state_word + self.states

    @property
    def width(self) -> int:
        return self.value_word + self.dimension
