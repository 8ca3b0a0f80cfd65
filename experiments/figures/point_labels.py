"""Names beside points, where they touch nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text

# Where a name may stand from its point, best first: points to the right, points up, alignment.
PLACES = (
    (6, 0, "left"),
    (5, 5, "left"),
    (5, -5, "left"),
    (0, 7, "center"),
    (0, -7, "center"),
    *((right, up, "left") for right in (18, 30) for up in (4, -4, 12, -12, 20, -20)),
    (0, 18, "center"),
    (-12, 14, "right"),
)
ABOVE = (*((0, up, "center") for up in (7, 16, 25)), (-10, 14, "right"), (10, 14, "left"), *PLACES)
NEAR = 9  # points; from farther off, a line leads to the point
MARK, LINE = 2.4, 0.8  # points around a mark's middle, and around a line, that a name leaves free


@dataclass(frozen=True)
class Name:
    """What is written, for the point (x, y) of the data; above it for choice, or at its right."""

    text: str
    x: float
    y: float
    colour: object
    above: bool = False


class Names(Artist):
    """Writes names into `axes`. When the figure is drawn, and its layout known, each, from the lowest up, goes
    to the place where it covers the least of the names before it, of marks and lines, and of what lies beyond the
    frame (at the right there is room), and isn't taken for the name of a point that it is nearer to. A thin line leads
    to the point from farther off."""

    def __init__(self, axes: Axes, names: Sequence[Name]) -> None:
        super().__init__()
        self.set_zorder(-1)  # before the texts it moves
        self.set_in_layout(False)
        self._texts: list[tuple[Annotation, tuple]] = []
        for name in sorted(names, key=lambda name: name.y):
            places = ABOVE if name.above else PLACES
            text = axes.annotate(
                name.text,
                (name.x, name.y),
                xytext=places[0][:2],
                textcoords="offset points",
                ha=places[0][2],
                va="center",
                fontsize=6.5,
                color=name.colour,
                path_effects=[withStroke(linewidth=1.2, foreground="white")],
                arrowprops={"arrowstyle": "-", "color": name.colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2},
            )
            self._texts.append((text, places))
        axes.add_artist(self)

    def draw(self, renderer) -> None:
        axes = self.axes
        assert axes is not None
        point = renderer.points_to_pixels(1.0)
        taken = np.concatenate([_around(line, point) for line in axes.lines] or [np.empty((0, 4))])
        frame = axes.get_window_extent(renderer).extents
        room = np.array([[frame[0], frame[1], np.inf, frame[3]]])
        points = axes.transData.transform([text.xy for text, _ in self._texts])
        for own, (text, places) in enumerate(self._texts):
            boxes = [_at(text, place, renderer) for place in places]
            others = np.delete(points, own, axis=0)
            costs = [
                _shared(box, taken)
                + _area(box)
                - _shared(box, room)
                + _area(box) * (_near(place) and _distance(box, points[own]) > _distance(box, others))
                for box, place in zip(boxes, places, strict=True)
            ]
            taken = np.vstack([taken, _at(text, places[int(np.argmin(costs))], renderer)])


def _near(place: tuple[float, float, str]) -> bool:
    return math.hypot(*place[:2]) < NEAR


def _distance(box: np.ndarray, points: np.ndarray) -> float:
    """From the box to the nearest of the points (n, 2) or (2,)."""
    away = np.maximum(np.maximum(box[:2] - points, points - box[2:]), 0)
    return float(np.hypot(away[..., 0], away[..., 1]).min(initial=np.inf))


def _at(text: Annotation, place: tuple[float, float, str], renderer) -> np.ndarray:
    """Moves `text` there; its left, bottom, right and top."""
    text.xyann = place[:2]
    text.set_horizontalalignment(place[2])
    assert text.arrow_patch is not None
    text.arrow_patch.set_visible(not _near(place))
    return Text.get_window_extent(text, renderer).extents  # without the line


def _around(line: Line2D, point: float) -> np.ndarray:
    """Boxes around the marks of a line, and along it."""
    at = line.get_transform().transform(line.get_xydata())
    boxes = [np.empty((0, 4))]
    if line.get_marker() not in ("None", "", None):
        boxes.append(np.concatenate([at - MARK * point, at + MARK * point], axis=1))
    if line.get_linestyle() != "None" and len(at) > 1:
        along = np.concatenate([[0.0], np.hypot(*np.diff(at, axis=0).T).cumsum()])
        steps = np.arange(0, along[-1], 2 * LINE * point)
        path = np.stack([np.interp(steps, along, at[:, 0]), np.interp(steps, along, at[:, 1])], axis=1)
        boxes.append(np.concatenate([path - LINE * point, path + LINE * point], axis=1))
    return np.concatenate(boxes)


def _shared(box: np.ndarray, others: np.ndarray) -> float:
    """The area of `box` that `others` cover."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.prod(np.clip(sides, 0, None), axis=1).sum())


def _area(box: np.ndarray) -> float:
    return float(np.prod(box[2:] - box[:2]))
