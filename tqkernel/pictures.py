"""Drawings of a report, as PNG: where bits differ, which stage of which tile is off, where bytes lie in a block.

Needs matplotlib, which only reports do; each picture is drawn for a light and for a dark page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from tqkernel.involved import Involved
from tqref.layout import DATA_BYTES, HEAD_SIZE, METADATA_BYTES, PACKED_BYTES, CacheLayout, MetadataField

WIDTH = 5.2
"""Inches. Text of 11 points is then legible on a phone, and not too large at the width of a column."""
_DPI = 180
_SIZE = 11


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of page. scale: from few to many; zero: where nothing differs."""

    name: str
    page: str
    ink: str
    faint: str
    zero: str
    scale: tuple[str, ...]
    not_a_number: str
    key: str
    value: str
    metadata: str
    marked: str

    @property
    def colours(self) -> Colormap:
        return LinearSegmentedColormap.from_list(self.name, self.scale, N=256)


LIGHT = Theme(
    "light", page="#ffffff", ink="#1b1f24", faint="#8a939e", zero="#eef1f4",
    scale=("#fdd49e", "#fc8d59", "#d7301f", "#7f0000"), not_a_number="#6a3fb5",
    key="#cfe0f3", value="#d5ecd4", metadata="#eee3c4", marked="#c8102e",
)  # fmt: skip
DARK = Theme(
    "dark", page="#14181d", ink="#e6e9ed", faint="#7d8792", zero="#242b33",
    scale=("#6b3a1e", "#c4521d", "#fb8b3c", "#ffe08a"), not_a_number="#b18cf0",
    key="#27435f", value="#28503a", metadata="#54492a", marked="#ff5c6c",
)  # fmt: skip
THEMES = (LIGHT, DARK)

Draw = Callable[[Theme], bytes]
"""Draws one picture for one kind of page."""


def _png(figure: Figure, theme: Theme) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=theme.page, metadata={"Software": None})
    return buffer.getvalue()


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), dpi=_DPI, layout="constrained")


def _plain(axes: Axes, theme: Theme) -> None:
    """Colours and sizes of an axes; no frame."""
    axes.tick_params(colors=theme.ink, labelsize=_SIZE, length=3, color=theme.faint)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.ink)
        label.set_fontsize(_SIZE)


def _title(axes: Axes, text: str, theme: Theme) -> None:
    axes.set_title(text, loc="left", size=_SIZE, color=theme.ink)


def _colour_bar(figure: Figure, image: Any, axes: Sequence[Axes], label: str, theme: Theme) -> None:
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, fraction=0.08, pad=0.02)
    if isinstance(image.norm, LogNorm):
        bar.formatter = FuncFormatter(lambda value, position: _short(value))
    else:
        bar.locator = MaxNLocator(integer=True)
    bar.update_ticks()
    bar.ax.tick_params(colors=theme.ink, labelsize=_SIZE)
    bar.outline.set_visible(False)
    bar.set_label(label, color=theme.ink, size=_SIZE)


def _short(value: float) -> str:
    """Such as 100 or 1e6."""
    return f"{value:g}" if value < 1000 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


# ---------------------------------------------------------------- differing bits

_GAP, _WIDE = 4, 10
"""Columns between the dims and the two outputs of one value a row, and of each of these."""


def differing_bits(partitions: Mapping[int, Mapping[str, NDArray[np.integer[Any]]]]) -> Draw:
    """How many bits differ by row and dim, a panel for each partition.

    partitions: by number, the counts: `out` [QG, 128], `max_logits` and `exp_sums` [QG].
    """
    return partial(_draw_differing_bits, partitions)


def _draw_differing_bits(
    partitions: Mapping[int, Mapping[str, NDArray[np.integer[Any]]]], theme: Theme
) -> bytes:
    rows = len(next(iter(partitions.values()))["out"])
    figure = _figure(1.1 + len(partitions) * (0.55 + 0.085 * rows))
    panels = figure.subplots(len(partitions), 1, squeeze=False)[:, 0]
    most = max(int(counts.max(initial=0)) for panel in partitions.values() for counts in panel.values())
    norm = Normalize(1, max(2, most))
    middles = [HEAD_SIZE + _GAP + _WIDE / 2 + i * (_WIDE + _GAP) - 0.5 for i in range(2)]
    for axes, (number, counts) in zip(panels, partitions.items(), strict=True):
        picture = np.full((rows, HEAD_SIZE + 2 * (_GAP + _WIDE)), np.nan)
        picture[:, :HEAD_SIZE] = counts["out"]
        for name, middle in zip(("max_logits", "exp_sums"), middles, strict=True):
            start = int(middle - _WIDE / 2 + 0.5)
            picture[:, start : start + _WIDE] = counts[name][:, None]
        colours = theme.colours.with_extremes(under=theme.zero, bad=theme.page)
        image = axes.imshow(
            np.ma.masked_invalid(picture), colours, norm, aspect="auto", interpolation="nearest"
        )
        axes.set_yticks(range(0, rows, 2 if rows <= 8 else 4))
        axes.set_ylabel("query row")
        axes.set_xticks([0, 32, 64, 96, *middles], ["0", "32", "64", "96", "max", "sum"])
        total = sum(int(part.sum()) for part in counts.values())
        _title(axes, f"partition {number}: {total:,} bits differ", theme)
        _plain(axes, theme)
    panels[-1].set_xlabel("dim of out; then the row's max_logits and exp_sums")
    _colour_bar(figure, image, list(panels), "differing bits of an element", theme)
    return _png(figure, theme)


# ---------------------------------------------------------------- stages by tile


def distances_by_column(
    rows: Mapping[str, NDArray[np.float64]], columns: Sequence[int], label: str, marked: int | None = None
) -> Draw:
    """Largest distances in ulps: a line for each stage or output, a column for each tile or partition.

    rows: float64 [columns], infinite for a NaN on one side. columns: what to call them; label: what they are.
    marked: index of the column in which the two part.
    """
    return partial(_draw_distances, rows, columns, label, marked)


def _draw_distances(
    rows: Mapping[str, NDArray[np.float64]],
    columns: Sequence[int],
    label: str,
    marked: int | None,
    theme: Theme,
) -> bytes:
    figure = _figure(1.5 + 0.3 * len(rows))
    axes = figure.subplots()
    ulps = np.stack(list(rows.values()))
    finite = np.where(np.isfinite(ulps), ulps, 0)
    norm = LogNorm(1, max(10.0, float(finite.max(initial=0))))
    colours = theme.colours.with_extremes(under=theme.zero)
    image = axes.imshow(np.maximum(finite, 0.5), colours, norm, aspect="auto", interpolation="nearest")
    for row, column in np.argwhere(np.isinf(ulps)).tolist():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=theme.not_a_number, linewidth=0))
    for edge in range(1, len(rows)):
        axes.axhline(edge - 0.5, color=theme.page, linewidth=1.5)
    for edge in range(1, len(columns)) if len(columns) <= 64 else ():
        axes.axvline(edge - 0.5, color=theme.page, linewidth=0.75)
    if marked is not None:
        box = Rectangle((marked - 0.5, -0.5), 1, len(rows), fill=False, edgecolor=theme.ink, linewidth=1.5, zorder=3)
        box.set_clip_on(False)
        axes.add_patch(box)
    step = -(-len(columns) // 8)
    axes.set_xticks(range(0, len(columns), step), [str(column) for column in columns[::step]])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xlabel(label)
    _plain(axes, theme)
    note = ", violet: NaN or nothing alike" if np.isinf(ulps).any() else ""
    _colour_bar(figure, image, [axes], f"largest distance in ulps{note}", theme)
    return _png(figure, theme)


# ---------------------------------------------------------------- the cache block


def block_layout(layout: CacheLayout, marked: Sequence[Involved] = ()) -> Draw:
    """The bytes of one cache block in the order they are stored, those in `marked` filled."""
    return partial(_draw_block_layout, layout, marked)


def _draw_block_layout(layout: CacheLayout, marked: Sequence[Involved], theme: Theme) -> bytes:
    slots, heads = layout.kv_block_size, layout.num_kv_heads
    figure = _figure(1.6 + 0.12 * slots + 0.19 * heads * len(MetadataField))
    data, metadata = figure.subplots(2, 1, height_ratios=[0.12 * slots, 0.19 * heads * len(MetadataField)])
    across = layout.key_offset(1, 0) - layout.key_offset(0, 0)
    below = layout.metadata_offset(MetadataField.VALUE_SCALE, 0, 0) - layout.metadata_start

    def box(offset: int, size: int, colour: str) -> None:
        """A run of bytes, which never crosses the end of a line of its region."""
        axes, offset, width = (
            (metadata, offset - layout.metadata_start, below)
            if offset >= layout.metadata_start
            else (data, offset, across)
        )
        place = offset % width, offset // width - 0.5
        axes.add_patch(Rectangle(place, size, 1, facecolor=colour, edgecolor=theme.page, linewidth=0.6))

    for slot in range(slots):
        for head in range(heads):
            box(layout.key_offset(slot, head), PACKED_BYTES, theme.key)
            box(layout.value_offset(slot, head), PACKED_BYTES, theme.value)
            for field in MetadataField:
                box(layout.metadata_offset(field, slot, head), METADATA_BYTES, theme.metadata)
    for entry in marked:
        box(entry.offset, entry.size, theme.marked)

    data.set_xlim(0, across)
    data.set_ylim(slots - 0.5, -0.5)
    data.set_yticks(range(0, slots, 4))
    data.set_ylabel("slot")
    data.set_xticks(
        [layout.key_offset(0, head) + DATA_BYTES / 2 for head in range(heads)],
        [f"head {head}" if heads <= 6 else str(head) for head in range(heads)],
    )
    data.set_xlabel("head: 64 bytes of key nibbles, then 64 of value nibbles".replace("64", str(PACKED_BYTES)))
    _title(data, f"data, from byte 0, {across} bytes a slot", theme)
    names = ("norm", "scale", "zero")
    metadata.set_xlim(0, below)
    metadata.set_ylim(heads * len(MetadataField) - 0.5, -0.5)
    lines = [(head, field) for head in range(heads) for field in MetadataField]
    shown = lines if heads <= 4 else [line for line in lines if line[1] == MetadataField.VALUE_SCALE]
    metadata.set_yticks(
        [_line(layout, head, field, below) for head, field in shown],
        [f"{head} {names[field]}" if heads <= 4 else f"head {head}" for head, field in shown],
    )
    metadata.set_xticks(
        [METADATA_BYTES * (slot + 0.5) for slot in range(0, slots, 4)], [str(s) for s in range(0, slots, 4)]
    )
    metadata.set_xlabel("slot")
    _title(metadata, f"metadata, from byte {layout.metadata_start}, fp16 by head and field", theme)
    for axes in (data, metadata):
        _plain(axes, theme)
        axes.tick_params(axis="x", length=0)
    meanings = {"key": theme.key, "value": theme.value, "metadata": theme.metadata}
    meanings |= {"involved": theme.marked} if marked else {}
    patches = [Patch(color=colour, label=name) for name, colour in meanings.items()]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=4, frameon=False, labelcolor=theme.ink, fontsize=_SIZE,
        handlelength=1, handleheight=1, columnspacing=1.2,
    )  # fmt: skip
    return _png(figure, theme)


def _line(layout: CacheLayout, head: int, field: MetadataField, width: int) -> int:
    return (layout.metadata_offset(field, 0, head) - layout.metadata_start) // width
