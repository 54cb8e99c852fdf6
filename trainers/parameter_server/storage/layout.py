"""The layout of cells."""

from __future__ import annotations

from dataclasses import dataclass

from elastrec.trainers.parameter_server.storage.kernels.arrays import REST

CANDIDATE_WORDS = 5


@dataclass(frozen=True)
class RowLayout:
    """The positions of a row's numbers in its cell: id, version, table, last sighting if kept, state [S], values [D].

    State and values are those of one segment after the other; `row_state` names the state's.
    """

    dimension: int
    states: int
    keeps_seen: bool

    @property
    def seen_word(self) -> int:
        """0: none is kept."""
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
