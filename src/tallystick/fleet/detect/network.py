"""A small network's opinion of each frame, beside the checks.

Frames come in and hits go out, as with the checks. In between each frame becomes a row of features: how its identifier
usually behaves, when the frame came and how its payload changed, all measured by what the profile calls usual. The
network sees these and no identifier, so one network serves cars that it never saw. Memory is in the features (times of
before, decaying means) and none in the network: it scores each row by itself, and any cut into batches gives equal
bits. `train` makes the network; onnxruntime, of the extra `detect`, scores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.detect.checks import CHECKS, HIT
from tallystick.fleet.detect.fields import CONSTANT, NUMBER, STATE, value_of
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import Profile
from tallystick.kernels.jit import compiled

FEATURES = 1  # version: a network is trained on these features and reads no others
WIDTH = 26
# How the identifier is described; when the frame came; how its payload changed; and of late, for the identifier and for
# the whole bus.
PERIOD, JITTER, NUMBERS, STATES, STEADY, GAP, OFF, GAPS, RATE, BUS_RATE = range(10)
JUMP, BACK, FAR, BEYOND, TURN, STILL, FLIPS, STRANGE, ACTIVE = range(10, 19)
OFFS, JUMPS, TURNS, STRANGERS, MOTION, BUS_MOTION, BUS_STRANGE = range(19, WIDTH)
DECAY_US = 250_000.0  # over which frames are counted
CLOCK_US = 10_000_000  # after a longer silence, or a step back of the clock, all begins anew
LATELY, BUS_LATELY, FIELD_LATELY = 1 / 8, 1 / 256, 1 / 512  # weight of the newest frame in a decaying mean
ONNX_BYTES_MAX = 1 << 20


class FeatureState(NamedTuple):
    """What the walk over the frames remembers; a value, which `features` does not change."""

    own: npt.NDArray[
        np.float64
    ]  # by identifier: times of the last two frames, frames seen, counted of late, OFFS … MOTION
    words: npt.NDArray[np.uint64]  # by identifier: the last two payloads
    moved: npt.NDArray[np.float64]  # by field: changes that did not come, last difference, changes a frame of late
    bus: npt.NDArray[np.float64]  # time of the last frame, counted of late, BUS_MOTION, BUS_STRANGE, frames in all

    def to_bytes(self) -> bytes:
        return b"".join(array.tobytes() for array in self)

    @classmethod
    def from_bytes(cls, data: bytes, profile: Profile) -> FeatureState:
        """Raises `Malformed` where it is no state of this profile."""
        state, at = begin(profile), 0
        if len(data) != sum(array.nbytes for array in state):
            raise Malformed(f"the network's state has {len(data)} bytes, which is not the size for this profile")
        for array in state:
            array.flat[:] = np.frombuffer(data, array.dtype, array.size, at)
            at += array.nbytes
        return state


def begin(profile: Profile) -> FeatureState:
    """The state before the first frame."""
    ids, fields = len(profile.senders), len(profile.signals)
    return FeatureState(np.zeros((ids, 9)), np.zeros((ids, 2), np.uint64), np.zeros((fields, 3)), np.zeros(5))


@compiled(nogil=True)
def _ratio(value: float) -> float:
    """How many octaves above or below the usual, two at most."""
    return np.log2(min(max(value, 1 / 4), 4.0))  # type: ignore[no-any-return]


@compiled(nogil=True)
def _far(value: float, usual: float) -> float:
    """A distance by the usual one, which is a half; the farthest is 1."""
    return abs(value) / (abs(value) + max(usual, 1.0))


@compiled(nogil=True)
def _payload(row: Any, word: Any, words: Any, signals: Any, moved: Any) -> None:
    """Fill in how the payload changed."""
    for at in range(len(signals)):
        field = signals[at]
        first, bits, flip = field.first_bit, field.bits, field.flip
        value, last = value_of(word, first, bits, flip), value_of(words[0], first, bits, flip)
        change = float(value - last)
        if field.kind == NUMBER:
            limit = field.limits[0]
            row[NUMBERS] += bits / 64
            row[JUMP] = max(row[JUMP], _far(change, limit))
            row[BACK] = max(row[BACK], _far(value - value_of(words[1], first, bits, flip), limit))
            row[FAR] = max(row[FAR], _far(value - field.mean, field.spread))
            row[BEYOND] = max(row[BEYOND], _far(max(value - field.high, field.low - value, 0.0), field.spread))
            row[TURN] = max(row[TURN], _far(change - moved[at, 1], limit))
            row[ACTIVE] = max(row[ACTIVE], _far(change, field.spread))
            missed, moved[at, 1] = moved[at, 0] + moved[at, 2], change
            moved[at, 0] = 0.0 if change else missed
            moved[at, 2] += FIELD_LATELY * ((change != 0) - moved[at, 2])
            row[STILL] = max(row[STILL], _far(moved[at, 0], 8.0))
        elif field.kind == STATE:
            row[STATES] += bits / 64
            row[FLIPS] += change != 0
        elif field.kind == CONSTANT:
            row[STEADY] += bits / 64
            row[STRANGE] += change != 0 or value != field.mean


@compiled(nogil=True)
def _walk(
    ts: Any, can_id: Any, word: Any, micros: int, ids: Any, senders: Any, signals: Any, state: Any, out: Any
) -> None:
    own, words, moved, bus = state
    usual = DECAY_US / max(micros, 1)  # what a frame of the calibration adds to the usual count
    everything = 0.5 + senders["frames"].sum() * usual
    for at in range(len(ts)):
        row, now = out[at], float(ts[at])
        pause = now - bus[0]
        if pause < 0 or pause > CLOCK_US:
            own[:], words[:], moved[:], bus[1:4] = 0, 0, 0, 0
        bus[0], bus[1] = now, bus[1] * np.exp(-pause / DECAY_US) + 1
        row[BUS_RATE], row[BUS_MOTION], row[BUS_STRANGE] = _ratio(bus[1] / everything), bus[2], bus[3]
        which = np.searchsorted(ids, can_id[at])
        if which == len(ids) or ids[which] != can_id[at]:
            bus[3] += BUS_LATELY * (1 - bus[3])
            continue
        sender, me = senders[which], own[which]
        gap, period = now - me[0], float(sender.period)
        me[3] = me[3] * np.exp(-gap / DECAY_US) + 1 if me[2] else 1.0
        row[PERIOD], row[JITTER] = np.log10(1 + period) / 6, np.log10(1 + sender.jitter) / 6
        if me[2] >= 2:
            if period:
                row[GAP], row[GAPS] = _ratio(gap / period), _ratio((now - me[1]) / (2 * period))
                row[OFF] = _far(gap - period, sender.jitter)
            row[RATE] = _ratio(me[3] / (0.5 + sender.frames * usual))
            fields = slice(sender.first, sender.first + sender.fields)
            _payload(row, word[at], words[which], signals[fields], moved[fields])
            newest = (row[OFF], row[JUMP], row[TURN], row[STRANGE], row[ACTIVE])
            for kind in range(len(newest)):
                me[4 + kind] += LATELY * (newest[kind] - me[4 + kind])
                row[OFFS + kind] = me[4 + kind]
            bus[2] += BUS_LATELY * (row[ACTIVE] - bus[2])
            bus[3] += BUS_LATELY * ((row[STRANGE] > 0) - bus[3])
        me[1], me[0], me[2] = me[0], now, me[2] + 1
        words[which, 1], words[which, 0] = words[which, 0], word[at]
    bus[4] += len(ts)


def features(profile: Profile, state: FeatureState, frames: Frames) -> tuple[FeatureState, npt.NDArray[np.float32]]:
    """The state after these frames, and a row of features for each."""
    state = FeatureState(state.own.copy(), state.words.copy(), state.moved.copy(), state.bus.copy())
    out = np.zeros((len(frames), WIDTH))
    tables = (profile.ids, profile.senders, profile.signals)
    _walk(frames.ts, frames.can_id, frames.word, profile.micros, *tables, state, out)
    return state, out.astype(np.float32)


def judged(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Of which rows there is an opinion: the identifier is known, and it was seen twice before."""
    return np.asarray(rows[:, NUMBERS:GAP].any(axis=1))


class BusNetwork:
    """A trained network, ready to score on one thread."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """From what `train` returned. Raises `Malformed` for another version's, `Misuse` without onnxruntime."""
        if body.get("features") != FEATURES:
            found = f"version {body.get('features')}, and this program has version {FEATURES}"
            raise Malformed(f"the network reads features of {found}", hint="train it anew: tally detect train")
        onnx, limit = body.get("onnx"), body.get("limit")
        if not isinstance(onnx, bytes) or len(onnx) > ONNX_BYTES_MAX or not isinstance(limit, float) or isnan(limit):
            raise Malformed(f"a network is ONNX of at most {ONNX_BYTES_MAX} bytes and a limit")
        self.limit, self.enabled = limit, body.get("enabled") is True
        try:
            import onnxruntime
        except ImportError as error:
            hint = "pip install 'tallystick[detect]'"
            raise Misuse("networks are scored by onnxruntime, which is not installed", hint=hint) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of whatever type the library has for bytes that are no network
            raise Malformed("the network's ONNX cannot be read") from error
        ends = [(one.name, *one.shape[1:]) for one in (*self._session.get_inputs(), *self._session.get_outputs())]
        if ends != [("rows", WIDTH), ("scores", 1)]:
            raise Malformed(f"the network does not turn rows of {WIDTH} features into scores")

    def scores(
        self, profile: Profile, state: FeatureState, frames: Frames
    ) -> tuple[FeatureState, npt.NDArray[np.float32]]:
        """The state after these frames, and the score of each: the higher, the likelier an attack; -inf: none."""
        state, rows = features(profile, state, frames)
        return state, np.where(judged(rows), self._session.run(None, {"rows": rows})[0][:, 0], -np.inf)

    def step(self, profile: Profile, state: FeatureState, frames: Frames) -> tuple[FeatureState, npt.NDArray[np.void]]:
        """The state after these frames, and a hit for each whose score reaches the limit."""
        before = int(state.bus[-1])
        state, scores = self.scores(profile, state, frames)
        places = np.flatnonzero(scores >= self.limit)
        hits = np.zeros(len(places), HIT)
        hits["frame"], hits["ts"], hits["can_id"] = before + places, frames.ts[places], frames.can_id[places]
        hits["check"], hits["field"], hits["high"] = CHECKS.index("network"), -1, self.limit
        hits["seen"], hits["strength"] = scores[places], 1 + scores[places] - self.limit
        return state, hits
