"""Streams, their splits, and positions in them, as used by masters, workers and records.

A *stream* is a named sequence of training data. It is cut into *splits*, each of which one worker reads in one go; a
split that is leased to a worker is a *shard* (AntDT §V-C). Rows of a data manifest are one kind of stream; others,
such as the offsets of a log, have types of their own beside `RowRange` and `row_ranges.RowRanges`. Nothing is read
here.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.text.decoders import json_decoder

TRAINING_STREAM, EVALUATION_STREAM = "training", "evaluation"
STREAMS = (TRAINING_STREAM, EVALUATION_STREAM)
"""The streams of a job."""


class ManifestStream(msgspec.Struct, frozen=True, tag=True):
    """A stream that consists of the rows of a data manifest.

    Attributes:
        manifest: its URI.
    """

    manifest: str


class RowRange(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`length` rows of a data manifest from row `start` on, counted over its files.

    Attributes:
        seed: of the shuffle inside the range; from the job's seed, epoch and the range alone.
    """

    epoch: int
    start: int
    length: int
    seed: int
    shuffle: bool

    def __str__(self) -> str:
        return f"rows {self.start} to {self.start + self.length - 1} of epoch {self.epoch}"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream.

    Attributes:
        number: unique in the stream, and never reused.
        rows: their number; None if it is known only after the split has been read to its end.
        range: the part that the stream's source has to read.
    """

    stream: str
    number: int
    rows: int | None
    range: RowRange

    def __str__(self) -> str:
        return f"{self.stream} shard {self.number} ({self.range})"


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a split that was handed out and is not done.

    Attributes:
        offset: rows of it that are trained.
        attempt: of the last lease.
        position: where to continue reading, in a form that only the stream's source interprets; empty if `offset` is
        enough.
    """

    number: int
    offset: int
    attempt: int
    position: bytes = b""


class StreamPositions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of one stream.

    Attributes:
        cursor: splits that were handed out at least once, in the stream's order.
        begun: those among them that are not done; the others are.
        bad_rows: different bad rows that were left out until these positions; records of earlier versions have 0.
    """

    cursor: int
    begun: list[Begun]
    bad_rows: int = 0


class Positions(msgspec.Struct, frozen=True):
    """The progress of a job in each of its streams, by name; stored in checkpoint records and terms as JSON."""

    streams: dict[str, StreamPositions]

    def of(self, stream: str) -> StreamPositions | None:
        """None: at the stream's beginning."""
        return self.streams.get(stream)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(text: bytes | str) -> Positions:
        """Raises msgspec.MsgspecError when the text is damaged."""
        streams = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "streams" in streams:
            return _positions.decode(text)
        # Records of versions with only one stream.
        return Positions({TRAINING_STREAM: _stream_positions.decode(text)})


# Made at import: a master reads positions on the threads that answer requests and commit records.
_positions, _stream_positions = json_decoder(Positions), json_decoder(StreamPositions)
