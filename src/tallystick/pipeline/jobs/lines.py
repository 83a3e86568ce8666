"""Lines on a map: distances, fewer points for the same shape, and the texts that maps read (WKT, GeoJSON)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.errors import Malformed

Points = npt.NDArray[np.float64]  # rows of longitude and latitude, in degrees
EARTH_M = 6_371_008.8  # mean radius
_DECIMALS = 6  # of a degree: a tenth of a metre
_LINE = re.compile(r"LINESTRING \(([-0-9., ]+)\)")


def steps_m(points: Points) -> npt.NDArray[np.float64]:
    """The length of each step along great circles (haversine)."""
    longitude, latitude = np.radians(points).T
    half = np.sin(np.diff(latitude) / 2) ** 2
    half += np.cos(latitude[:-1]) * np.cos(latitude[1:]) * np.sin(np.diff(longitude) / 2) ** 2
    lengths: npt.NDArray[np.float64] = 2 * EARTH_M * np.arcsin(np.sqrt(half))
    return lengths


def simplified(points: Points, tolerance_m: float) -> Points:
    """The points without those that lie within `tolerance_m` of the line through the others (Douglas and Peucker)."""
    if len(points) < 3:
        return points
    scale = np.radians(1.0) * EARTH_M * np.array([np.cos(np.radians(points[:, 1].mean())), 1.0])
    plane = points * scale
    keep = np.zeros(len(points), np.bool_)
    keep[[0, -1]] = True
    waiting = [(0, len(points) - 1)]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        away = _distances(plane[first + 1 : last], plane[first], plane[last])
        furthest = int(away.argmax())
        if away[furthest] > tolerance_m:
            middle = first + 1 + furthest
            keep[middle] = True
            waiting += [(first, middle), (middle, last)]
    return points[keep]


def _distances(points: Points, start: Points, end: Points) -> npt.NDArray[np.float64]:
    """How far points of a plane lie from a stretch of it."""
    along = end - start
    length = float(along @ along)
    share = np.clip((points - start) @ along / length, 0.0, 1.0) if length else np.zeros(len(points))
    away: npt.NDArray[np.float64] = np.hypot(*(points - start - share[:, None] * along).T)
    return away


def wkt(points: Points) -> str | None:
    """A LINESTRING, or nothing where there are fewer than two points."""
    if len(points) < 2:
        return None
    pairs = np.round(points, _DECIMALS).tolist()
    return f"LINESTRING ({', '.join(f'{longitude} {latitude}' for longitude, latitude in pairs)})"


def geometry(line: str | None) -> dict[str, Any] | None:
    """A LINESTRING as a geometry of GeoJSON (RFC 7946)."""
    if line is None:
        return None
    match = _LINE.fullmatch(line)
    if match is None:
        raise Malformed(f'"{line[:40]}" is not a LINESTRING')
    pairs = [[float(number) for number in pair.split()] for pair in match[1].split(",")]
    return {"type": "LineString", "coordinates": pairs}
