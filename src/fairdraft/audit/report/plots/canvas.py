"""A figure that becomes inline SVG: selectable text, and colors that follow the page's theme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# each color stands for a variable of the page's style sheet, which replaces it in the SVG
INK = "#010101"
MUTED = "#020202"
LINE = "#030303"
SURFACE = "#040404"
GOOD = "#050505"
BAD = "#060606"
UNSURE = "#070707"
OVER = "#080808"
UNDER = "#090909"
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    SURFACE: "surface",
    GOOD: "good",
    BAD: "bad",
    UNSURE: "unsure",
    OVER: "over",
    UNDER: "under",
}

# gid of a text that crosses lines; the style sheet keeps the lines off it
HALO = "halo"

WIDTH = 400
_FONT_SIZE = 11.5
SMALL = 11
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": _FONT_SIZE,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": _FONT_SIZE,
    "legend.labelcolor": INK,
}


class MissingPlotLibrary(ImportError, ValueError):
    """matplotlib is not installed; the message says how to get it."""

    def __init__(self) -> None:
        super().__init__(
            "the HTML report draws its plots with matplotlib, which is not installed: "
            "pip install 'fairdraft[audit]'"
        )


def check_plot_library() -> None:
    """Refuses early, before an audit has run for an hour, what could not be drawn at its end.

    Raises:
        MissingPlotLibrary: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingPlotLibrary


class Canvas:
    """One figure with one pair of axes, `WIDTH` by `height` pixels."""

    def __init__(self, axes: Axes, salt: str) -> None:
        self.axes = axes
        self._salt = salt

    def legend(self, handles: list[Any] | None = None) -> None:
        """Puts a legend in one row above the axes, outside them."""
        found = self.axes.get_legend_handles_labels()[0] if handles is None else handles
        figure = self.axes.figure
        figure.legend(handles=found, loc="outside upper left", ncols=3)  # type: ignore[call-arg]

    def svg(self, title: str, description: str) -> str:
        """Returns the figure as an <svg> element.

        Args:
            title: Its accessible name.
            description: What it shows, for those who do not see it.
        """
        figure = self.axes.figure
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})  # type: ignore[union-attr]
        return _inline(buffer.getvalue(), self._salt, title, description)


@contextmanager
def canvas(name: str, height: int) -> Iterator[Canvas]:
    """Opens a figure; matplotlib's settings and state are as before when it closes.

    Args:
        name: Of the plot, letters and dashes; keeps the ids of several on one page apart.
        height: In pixels, of a width of `WIDTH`.

    Raises:
        MissingPlotLibrary: If matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPlotLibrary from error
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
        yield Canvas(figure.add_subplot(), name)


def _inline(document: str, salt: str, title: str, description: str) -> str:
    start = document.index("<svg")
    end = document.index(">", start) + 1
    body = document[end : document.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace(f' id="{HALO}"', f' class="{HALO}"')
    body = re.sub(r' id="([^"]+)"', rf' id="{salt}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{salt}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{salt}-\1)", body)
    body = re.sub(r"(font: (?:\w+ )?[\d.]+px) [^;\"]+", r"\1 var(--font)", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    body = re.sub(r"\n\s*", "\n", body)
    view = re.search(r'viewBox="[^"]+"', document[start:end])
    assert view is not None
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view.group()} role="img" aria-labelledby="{salt}-title {salt}-desc">\n'
        f'<title id="{salt}-title">{html.escape(title)}</title>\n'
        f'<desc id="{salt}-desc">{html.escape(description)}</desc>{body}</svg>'
    )
