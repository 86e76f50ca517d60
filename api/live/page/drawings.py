"""Small drawings of the page, as SVG without styles of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from dovetail.executor.live.views import JobView
from dovetail.toolkit.wording import two_digits

HUES: Final = 8
_MOST_SLOWDOWN: Final = 100.0


def hue(job: str) -> str:
    """Return the class with the colour of a job; it says nothing else."""
    number = int(job[1:])
    # Jobs that run together are often as many numbers apart as there are devices.
    return f"c{(number + number // HUES) % HUES}"


class BarPiece(NamedTuple):
    """A part of a device: who has it, and its width in per cent; ``capped``: by a share."""

    job: str
    width: float
    capped: bool


def pieces(seats: Iterable[tuple[str, int | str | None]]) -> list[BarPiece]:
    """Return the parts of a device from its jobs and their shares.

    Jobs without a share divide what the others leave, though they compete for all of it.
    """
    seats = list(seats)
    caps = [share if isinstance(share, int) else None for _, share in seats]
    taken = sum(cap for cap in caps if cap is not None)
    free = [cap for cap in caps if cap is None]
    rest = max(100.0 - taken, 12.0 * len(free)) / len(free) if free else 0.0
    widths = [rest if cap is None else float(cap) for cap in caps]
    scale = min(1.0, 100.0 / sum(widths)) if widths else 1.0
    return [
        BarPiece(job, width * scale, cap is not None)
        for (job, _), width, cap in zip(seats, widths, caps, strict=True)
    ]


def split_bar(seats: Iterable[tuple[str, int | str | None]]) -> Markup:
    """Return the bar of a device: each job's part in its colour, lighter without a share."""
    x, drawn = 0.0, []
    for piece in pieces(seats):
        kind = hue(piece.job) if piece.capped else f"{hue(piece.job)} soft"
        width = max(piece.width - 0.7, 0.5)
        drawn.append(f'<rect class="{kind}" x="{x:.4g}" width="{width:.4g}" height="8"/>')
        x += piece.width
    return _svg("split", 100, 8, drawn)


def part_bar(part: float, kind: str = "") -> Markup:
    """Return a bar that is filled to a part of 1."""
    width = 100 * min(max(part, 0.0), 1.0)
    return _svg("part", 100, 4, [f'<rect class="fill {kind}" width="{width:.3g}" height="4"/>'])


def promise_bar(job: JobView, kind: str) -> Markup:
    """Return the slowdown of a job on a scale from 1: measured, predicted, bound and gSLA."""
    known = [job.slowdown, job.predicted, job.upper, job.gsla]
    figures = [min(figure, _MOST_SLOWDOWN) for figure in known if figure is not None]
    if not figures:
        return Markup()
    top = 1 + 1.15 * max(max(figures) - 1, 0.1)

    def at(slowdown: float) -> float:
        return 100 * (min(max(slowdown, 1.0), top) - 1) / (top - 1)

    drawn = ['<rect class="track" y="3" width="100" height="4"/>']
    if job.slowdown is not None:
        width = max(at(job.slowdown), 1.0)
        drawn.append(f'<rect class="fill {kind}" y="3" width="{width:.3g}" height="4"/>')
    if job.predicted is not None:
        right = max(at(job.predicted if job.upper is None else job.upper), at(job.predicted) + 0.8)
        left = at(job.predicted)
        width = right - left
        drawn.append(
            f'<rect class="bound" x="{left:.3g}" y="4.2" width="{width:.3g}" height="1.6"/>'
        )
    if job.gsla is not None:
        drawn.append(f'<rect class="limit" x="{at(job.gsla):.3g}" width="1" height="10"/>')
    return _svg("promise", 100, 10, drawn)


def promise_text(job: JobView) -> str:
    """Return what ``promise_bar`` shows, in words."""
    figures = (
        ("measured", job.slowdown),
        ("predicted", job.predicted),
        ("at most", job.upper),
        ("gSLA", job.gsla),
    )
    return ", ".join(f"{name} {two_digits(value)}" for name, value in figures if value is not None)


class Span(NamedTuple):
    """A bar of a chart over time: a job on a row, from and to in seconds from now.

    ``open`` says that its end is unknown, ``starts`` that it has not begun.
    """

    row: int
    job: str
    from_s: float
    to_s: float
    lane: int = 0
    lanes: int = 1
    open: bool = False
    starts: bool = False


_ROW: Final = 32
_LEFT: Final = 88
_WIDTH: Final = 720
_HEAD: Final = 18


def gantt(
    rows: Sequence[str], spans: Iterable[Span], length_s: float, ticks: Sequence[str]
) -> Markup:
    """Return jobs on devices over time.

    Parameters
    ----------
    rows : sequence of str
        Names of the devices.
    spans : iterable of Span
        The bars.
    length_s : float
        Seconds that the chart covers.
    ticks : sequence of str
        Names of equally distant moments, from its beginning to its end.
    """
    height = _HEAD + _ROW * len(rows)
    drawn = []
    for k, tick in enumerate(ticks):
        x = _LEFT + (_WIDTH - _LEFT) * k / (len(ticks) - 1)
        anchor = "end" if k == len(ticks) - 1 else "start" if k == 0 else "middle"
        drawn.append(f'<path class="grid" d="M{x:.4g} {_HEAD - 4}V{height}"/>')
        drawn.append(
            f'<text x="{x:.4g}" y="11" text-anchor="{anchor}">{Markup.escape(tick)}</text>'
        )
    for k, row in enumerate(rows):
        y = _HEAD + _ROW * k
        drawn.append(f'<text class="row" y="{y + 20}">{Markup.escape(row)}</text>')
    drawn.extend(_span(span, length_s) for span in spans)
    return _svg("gantt", _WIDTH, height, drawn, stretched=False)


def _span(span: Span, length_s: float) -> str:
    scale = (_WIDTH - _LEFT) / length_s
    x, width = _LEFT + span.from_s * scale, max((span.to_s - span.from_s) * scale - 1, 2.0)
    height = (_ROW - 4) / span.lanes
    y = _HEAD + _ROW * span.row + 2 + span.lane * height
    kind = f"{hue(span.job)}{' soft' if span.open else ''}{' new' if span.starts else ''}"
    named = Markup.escape(span.job)
    text = ""
    if width > 7 * len(span.job) + 6:
        text = f'<text class="on" x="{x + 4:.4g}" y="{y + height / 2 + 4:.4g}">{named}</text>'
    return (
        f'<g><title>{named}</title><rect class="{kind}" x="{x:.4g}" y="{y:.4g}" '
        f'width="{width:.4g}" height="{height - 1:.4g}" rx="2"/>{text}</g>'
    )


def _svg(
    kind: str, width: float, height: float, drawn: Iterable[str], stretched: bool = True
) -> Markup:
    ratio = ' preserveAspectRatio="none"' if stretched else ""
    # What it shows is said in the text beside it, too.
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}"{ratio} aria-hidden="true">'
        f"{''.join(drawn)}</svg>"
    )
