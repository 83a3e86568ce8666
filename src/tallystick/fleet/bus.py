"""The CAN bus of a simulated car: `motion.py` and `engine.py` give its drive, and out come its frames, for hours.

Three layouts stand for three cars. Each lays the same messages and signals (bus.txt) out its own way: identifiers, byte
order, scales, periods, and the order of signals in a payload. The third has 29-bit identifiers too. Signals that say
the same thing in several messages have noise of their own in each, so they agree as real sensors do.

A control unit sends by its own clock, which runs some parts in a million wrong and wanders; each frame is late by up to
4 % of its period. The bus carries 500 kbit/s: of the frames that wait, the one with the lowest identifier goes first,
and no two overlap. A frame's time is when it ends. Left out: stuff bits by content (an average is taken), errors on the
wire, and the sleep of a parked car: the bus goes on with the next trip, the engine running throughout.

The same arguments give the same frames. Memory is bounded by a block of half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick import wire
from tallystick.errors import Misuse
from tallystick.fleet import engine
from tallystick.fleet.can import Field
from tallystick.fleet.dbc import EXTENDED
from tallystick.fleet.detect.frames import Frames, joined
from tallystick.fleet.motion import Motion
from tallystick.fleet.routes import Floats, to_degrees
from tallystick.kernels.jit import compiled

LAYOUTS = (0, 1, 2)
MINUTES_MAX = 6_000  # a hundred hours
GRID_S = 0.01  # the control units compute so often
BLOCK_S = 30
BIT_US = 2  # 500 kbit/s
LATE = 0.04  # of a period, at most
WORD_BITS, OCTET = 64, 8
NOMINAL_MS = (10, 20, 50, 100, 200, 500, 1000)
PERIODS_MS = (NOMINAL_MS, (12, 25, 40, 80, 160, 400, 800), (10, 20, 40, 120, 250, 600, 1000))  # by layout
POLYNOMIALS = (0x07, 0x1D, 0x2F)  # of the checksums, by layout
UNITS = ("Engine", "Gearbox", "Chassis", "Body", "Gateway")


@dataclass(frozen=True)
class BusMessage:
    """A message of one layout. Its fields lie in a word that is read in its byte order."""

    can_id: int
    name: str
    unit: str
    sent_by: str  # a signal's change, or "chance"; empty where there is a period
    period_us: int
    length: int
    is_big: bool
    fields: tuple[Field, ...]


@cache
def _table() -> tuple[dict[str, list[str]], list[list[str]]]:
    lines = files("tallystick.fleet").joinpath("bus.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[1]: row[2:] for row in rows if row[0] == "signal"}, [row[1:] for row in rows if row[0] == "message"]


@cache
def bus_messages(layout: int) -> tuple[BusMessage, ...]:
    """The messages of a layout, the most urgent first. Raises `Misuse` for a layout that is none."""
    if layout not in LAYOUTS:
        raise Misuse(f"layout {LAYOUTS[0]} to {LAYOUTS[-1]} expected, found {layout}")
    signals, rows = _table()
    chance = np.random.default_rng(layout)
    nominal_ms = [int(row[2]) if wire.is_number(row[2]) else 0 for row in rows]
    urgency = np.argsort([(period_ms or 60) * chance.uniform(0.5, 2) for period_ms in nominal_ms])
    can_ids = np.sort(chance.choice(np.arange(0x40, 0x7F0), len(rows), replace=False)).tolist()
    found = []
    for can_id, number in zip(can_ids, urgency.tolist(), strict=True):
        name, unit, sent_by, *carried = rows[number]
        period_ms = PERIODS_MS[layout][NOMINAL_MS.index(nominal_ms[number])] if nominal_ms[number] else 0
        is_extended = layout == LAYOUTS[-1] and period_ms >= NOMINAL_MS[3]
        is_big = layout == 1 or (layout == 2 and number % 2 == 0)
        fields, at = [], 0
        for signal in chance.permutation(carried).tolist():
            bits, factor, offset, steps, *_ = signals[signal]
            wide = abs(int(bits))
            scale = float(factor) * (float(chance.choice([1.0, 1.25, 2.0])) if wide >= OCTET and float(steps) else 1.0)
            at = -(-at // OCTET) * OCTET if wide >= OCTET else at
            first_bit = WORD_BITS - at - wide if is_big else at
            fields.append(Field(signal, first_bit, wide, bits[0] == "-", scale, float(offset)))
            at += wide
        length = int(chance.choice([-(-at // OCTET), 8]))
        own_id = can_id << 18 | number | EXTENDED if is_extended else can_id
        sent_by = "" if period_ms else sent_by
        found.append(BusMessage(own_id, name, unit, sent_by, 1000 * period_ms, length, is_big, tuple(fields)))
    return tuple(found)


def dbc_of(layout: int) -> str:
    """The DBC of a layout. A signal's VSS path is its comment, in the first message that carries it."""
    signals, paths, messages, comments = _table()[0], set[str](), [], []
    for message in bus_messages(layout):
        messages.append(f"\nBO_ {message.can_id} {message.name}: {message.length} {message.unit}")
        for field in message.fields:
            start = field.first_bit
            if message.is_big:  # the format names the highest bit, counted upwards in its octet
                octet, above = divmod(WORD_BITS - field.first_bit - field.bits, OCTET)
                start = OCTET * octet + OCTET - 1 - above
            place = f"{start}|{field.bits}@{0 if message.is_big else 1}{'-' if field.signed else '+'}"
            unit, path = signals[field.name][4:]
            scale = f'({field.factor:.10g},{field.offset:g}) [0|0] "{unit if unit != "-" else ""}" Gateway'
            messages.append(f" SG_ {field.name} : {place} {scale}")
            if path != "-" and path not in paths:
                paths.add(path)
                comments.append(f'CM_ SG_ {message.can_id} {field.name} "{path}";')
    head = f'VERSION "{layout}"\n\nNS_ :\n\nBS_:\n\nBU_: {" ".join(UNITS)}'
    return "\n".join([head, *messages, "", *comments, ""])


# --- the drive ---


@compiled(nogil=True)
def _lag(values: Floats, last: float, share: float) -> Floats:
    """Each value drawn towards by a share of what is missing."""
    out = np.empty_like(values)
    for i in range(len(values)):
        last += share * (values[i] - last)
        out[i] = last
    return out


_TRACK = ("east_m", "north_m", "heading_deg", "speed_ms", "acceleration_ms2", "distance_m")


def _awake(motion: Motion, rows: int) -> Iterator[npt.NDArray[np.float64]]:
    """East, north, heading, speed, acceleration and distance of the steps with the engine on, `rows` at a time."""
    held = np.empty((6, 0))
    while True:
        track = motion.advance(rows)
        held = np.hstack([held, np.stack([getattr(track, name)[track.running[:, 0], 0] for name in _TRACK])])
        while held.shape[1] >= rows:
            yield held[:, :rows]
            held = held[:, rows:]


def _drive(layout: int, chance: np.random.Generator) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Every signal's true value at each point of the grid, a block at a time."""
    rows = round(BLOCK_S / GRID_S)
    car = np.random.default_rng(layout)
    bodies, ambient_c = engine.Bodies.draw(1, car), float(chance.uniform(2, 12))
    odometer_km, coolant_c, second = car.uniform(500, 90_000), np.array([ambient_c]), 0
    tank = chance.uniform(0.6, 1.0)
    last = {"burnt": 0.0}

    def lag(key: str, values: Floats, tau_s: float) -> Floats:
        out = _lag(values, last.get(key, float(values[0])), GRID_S / tau_s)
        last[key] = float(out[-1])
        return out

    def wander(key: str, sigma: float, tau_s: float) -> Floats:
        share = GRID_S / tau_s
        last.setdefault(key, sigma * chance.standard_normal())
        return lag(key, chance.standard_normal(rows) * sigma * np.sqrt((2 - share) / share), tau_s)

    def change(key: str, values: Floats) -> Floats:
        out: Floats = values - np.append(last.get(key, values[0]), values[:-1])
        last[key] = float(values[-1])
        return out

    def switch(key: str, mean_s: float) -> Floats:
        out = np.asarray((last.get(key, 0.0) + np.cumsum(chance.random(rows) < GRID_S / mean_s)) % 2, np.float64)
        last[key] = float(out[-1])
        return out

    for east, north, heading, speed_ms, acceleration, distance in _awake(Motion(1, GRID_S, chance), rows):
        work = engine.work(bodies, speed_ms[:, None], acceleration[:, None], np.ones((rows, 1), np.bool_))
        fuel = work.fuel_l_s[:, 0]
        warm = engine.coolant(coolant_c, fuel.reshape(BLOCK_S, -1).mean(1, keepdims=True), np.array([ambient_c]), 1.0)
        grid = np.arange(rows) * GRID_S
        coolant = np.interp(grid, np.arange(BLOCK_S + 1), np.append(coolant_c, warm[:, 0]))
        coolant_c, burnt = warm[-1], last["burnt"] + np.cumsum(fuel) * GRID_S
        gear, load = work.gear[:, 0].astype(np.float64), lag("load", work.load[:, 0], 0.35)
        speed, pull = lag("speed", 3.6 * speed_ms, 0.12), lag("pull", acceleration, 0.2)
        turned = (change("heading", heading) + 180) % 360 - 180  # a turn takes a moment, not a step
        yaw = -lag("yaw", lag("turned", np.where(speed_ms > 0, turned, 0) / GRID_S, 1.2), 0.6)
        steer = 8 * yaw + wander("lane", 1.5, 2.0) * np.minimum(speed_ms / 5, 1)
        brake = lag("brake", 13 * np.maximum(-acceleration - 0.3, 0) + 14.0 * (speed_ms == 0), 0.12)
        rpm = lag("rpm", work.rpm[:, 0], 0.15) + wander("idle", 6, 0.5)
        torque = lag("torque", (work.load[:, 0] * bodies.power_w * 9.55) / np.maximum(work.rpm[:, 0], 1), 0.3)
        slide = 0.75 * 3.6 * np.radians(yaw)
        compressor, lights, wipers = switch("compressor", 90), switch("lights", 240), switch("wipers", 180)
        left, right = (yaw > 4).astype(np.float64), (yaw < -4).astype(np.float64)
        latitude, longitude = to_degrees(east, north)
        now = second + grid
        yield {
            "Speed": speed, "LongAcc": pull, "YawRate": yaw, "LatAcc": np.radians(yaw) * speed / 3.6, "Steer": steer,
            "SteerRate": lag("rate", change("steer", steer) / GRID_S, 0.1), "BrakePressure": brake,
            "WheelFL": np.maximum(speed - slide, 0), "WheelFR": np.maximum(speed + slide, 0),
            "WheelRL": np.maximum(speed * (1 + 0.002 * pull) - slide, 0), "OutputRpm": speed * 32.0,
            "WheelRR": np.maximum(speed * (1 + 0.002 * pull) + slide, 0),
            "BrakePedal": np.minimum(brake * 0.9, 100.0), "Rpm": rpm, "Torque": torque,
            "TorqueWanted": lag("wanted", torque, 0.05), "Load": 100 * load,
            "Throttle": np.minimum(12 + 80 * load, 100), "Pedal": np.minimum(92 * load, 100),
            "Manifold": 30 + 70 * load, "Advance": 8 + rpm / 150 - 12 * load,
            "Lambda": 1 + wander("lambda", 0.02, 0.8), "Injection": 1.5 + 9 * load,
            "FuelRate": lag("fuel", 3600 * fuel, 0.3), "Coolant": coolant, "Oil": lag("oil", coolant, 90),
            "OilPressure": 1 + rpm / 1000, "Intake": ambient_c + 12 + wander("in", 2, 60),
            "Catalyst": lag("catalyst", 300 + 500 * load, 40), "Ambient": ambient_c + wander("ambient", 1, 600),
            "Cabin": lag("cabin", 21 - 2 * compressor, 60),
            "FuelLevel": np.maximum(100 * (tank - burnt / bodies.tank_l), 3),
            "Battery": 14.1 - 0.4 * load - 0.15 * compressor - 0.2 * lights,
            "Odometer": odometer_km + distance / 1000, "Alternator": 30 + 25 * compressor + 12 * lights + 20 * load,
            "RunTime": np.floor(now), "Latitude": latitude, "Longitude": longitude, "Heading": heading,
            "HeightFront": wander("front", 6, 0.3) - 2 * pull, "HeightRear": wander("rear", 6, 0.3) + 2 * pull,
            "Gear": gear, "NeutralLamp": gear == 0, "HighGear": gear >= 4,
            "Clutch": np.abs(lag("clutch", gear, 0.1) - gear) > 0.05, "Standstill": speed_ms == 0,
            "BrakeLight": brake > 2, "IndicatorLeft": left, "IndicatorRight": right,
            "Blink": ((now % 0.8) < 0.4) * (left + right), "Headlights": lights, "Wiper": wipers * 2,
            "Compressor": compressor, "Fan": coolant > 88, "Doors": np.zeros(rows), "Belts": np.full(rows, 3),
            "Variant": np.full(rows, 0x5A31), "Knock": chance.integers(0, 256, rows),
            "Token": chance.integers(0, 65_536, rows), "Button": chance.integers(0, 16, rows),
        }  # fmt: skip
        last["burnt"], second = float(burnt[-1]), second + BLOCK_S


# --- the frames ---


def simulate_bus(layout: int, minutes: float, seed: int = 0, start_us: int = 0) -> Frames:
    """All frames of a drive at once; `bus_chunks` gives hours of them within bounded memory."""
    return joined(list(bus_chunks(layout, minutes, seed, start_us)))


def bus_chunks(layout: int, minutes: float, seed: int = 0, start_us: int = 0) -> Iterator[Frames]:
    """The frames of a drive in blocks of half a minute. Raises `Misuse` for what cannot be simulated."""
    messages = bus_messages(layout)
    if not 0 < minutes <= MINUTES_MAX or seed < 0:
        raise Misuse(f"0 to {MINUTES_MAX} minutes and a seed from 0 expected, found {minutes} and {seed}")
    chance = np.random.default_rng([seed, layout])
    clocks = np.random.default_rng(layout).uniform(-1, 1, (len(UNITS), 2))
    starts = {one.name: chance.uniform(0, one.period_us) for one in messages}
    sent = dict.fromkeys(starts, 0)
    end_us, free, waiting = minutes * 60e6, 0, Frames(*(np.zeros(0, kind) for kind in ("i8", "u4", "u1", "u8")))
    for number, drive in enumerate(_drive(layout, chance)):
        began, parts = number * BLOCK_S * 10**6, [waiting]
        for one in messages:
            clock = clocks[UNITS.index(one.unit)]
            due = _due(one, drive, began, clock, starts[one.name], chance)
            parts.append(Frames(due, *_payloads(one, drive, due - began, sent[one.name], layout, chance)))
            sent[one.name] += len(due)
        frames = joined(parts)
        frames = frames[np.lexsort((frames.can_id, frames.ts))]
        cut = int(np.searchsorted(frames.ts, began + BLOCK_S * 10**6))
        frames, waiting = frames[:cut], frames[cut:]
        order, done = _arbitrate(frames.ts, _urgency(frames.can_id), frames.length, free)
        frames, free = frames[order], int(done[-1])
        kept = int(np.searchsorted(done, end_us))
        yield Frames(start_us + done[:kept], frames.can_id[:kept], frames.length[:kept], frames.word[:kept])
        if kept < cut or began + BLOCK_S * 10**6 >= end_us:
            return


def _due(
    message: BusMessage, drive: dict[str, npt.NDArray[Any]], began: int, clock: Floats, start: float, chance: Any
) -> Any:
    """When the unit hands its frames to the bus, in microseconds."""
    if message.period_us:
        wrong, turn = 1 + 80e-6 * clock[0], 2 * np.pi / (300e6 + 100e6 * clock[1])
        first, last = ((began + more - start) / wrong / message.period_us for more in (-5e3, BLOCK_S * 1e6 + 5e3))
        ticks = start + wrong * message.period_us * np.arange(max(np.floor(first), 0), np.ceil(last))
        ticks += 2_000 * np.sin(ticks * turn + 3 * clock[1])
        ticks = ticks[(ticks >= began) & (ticks < began + BLOCK_S * 10**6)]
        late = np.minimum(np.abs(chance.standard_normal(len(ticks))) * (LATE / 4), LATE)
        return (ticks + late * message.period_us).astype(np.int64)
    if message.sent_by == "chance":
        ticks = np.sort(chance.uniform(0, BLOCK_S * 1e6, chance.poisson(BLOCK_S / 8)))
    else:  # three times, as such units do
        moved = np.flatnonzero(np.diff(drive[message.sent_by])) + 1
        times = moved[:, None] * (GRID_S * 1e6) + np.arange(3) * 20_000
        ticks = np.sort((times + chance.uniform(0, 900, times.shape)).ravel())
    return (began + ticks).astype(np.int64)


def _payloads(
    message: BusMessage,
    drive: dict[str, npt.NDArray[Any]],
    since: Any,
    sent: int,
    layout: int,
    chance: np.random.Generator,
) -> tuple[Any, Any, Any]:
    """Identifier, length and payload of each frame, by what the drive was when it was handed over."""
    count = len(since)
    at = np.minimum(since // round(GRID_S * 1e6), round(BLOCK_S / GRID_S) - 1)
    word = np.zeros(count, np.uint64)
    for field in message.fields:
        _, factor, _, steps, *_ = _table()[0][field.name]
        if field.name == "Counter":
            word |= field.encode((sent + np.arange(count)) % (1 << field.bits))
        elif field.name != "Checksum":
            true = drive[field.name][at]
            noise = chance.standard_normal(count, np.float32) * (true != 0) if float(steps) else 0.0  # not at rest
            word |= field.encode(true + float(steps) * float(factor) * noise)
    for field in message.fields:
        if field.name == "Checksum":
            word |= field.encode(_checksum(word, message.can_id & 0xFF, POLYNOMIALS[layout]))
    word = word if message.is_big else word.byteswap()
    return np.full(count, message.can_id, np.uint32), np.full(count, message.length, np.uint8), word


def _checksum(word: npt.NDArray[np.uint64], begin: int, polynomial: int) -> npt.NDArray[np.uint8]:
    """CRC-8 of the other seven octets and the identifier."""
    table: npt.NDArray[Any] = np.arange(256)
    for _ in range(OCTET):
        table = ((table << 1) ^ np.where(table & 0x80, polynomial, 0)) & 0xFF
    crc = np.full(len(word), begin, np.uint8)
    for octet in word.view(np.uint8).reshape(-1, OCTET).T:
        crc = table.astype(np.uint8)[crc ^ octet]
    return crc


def _urgency(can_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """What arbitration compares: a short identifier is the first eleven bits of a long one, and wins against it."""
    return np.where(can_id & EXTENDED, (can_id & 0x1FFF_FFFF) * 2 + 1, can_id << 19).astype(np.uint32)


@compiled(nogil=True)
def _arbitrate(due: Any, urgency: Any, length: Any, free: int) -> tuple[Any, Any]:
    """Which frame goes when, and when it ends: of those that wait the most urgent, once the bus is free."""
    waiting, order, done = np.empty((3, len(due)), np.int64)
    count, taken = 0, 0
    for slot in range(len(due)):
        if count == 0:
            free = max(free, due[taken])
        while taken < len(due) and due[taken] <= free:
            waiting[count] = taken
            count += 1
            taken += 1
        best = 0
        for i in range(1, count):
            if urgency[waiting[i]] < urgency[waiting[best]]:
                best = i
        order[slot] = waiting[best]
        for i in range(best, count - 1):  # frames of one identifier stay in their order
            waiting[i] = waiting[i + 1]
        count -= 1
        free += BIT_US * (51 + 9 * int(length[order[slot]]))  # an eighth of the payload and a few bits more are stuffed
        done[slot] = free
    return order, done
