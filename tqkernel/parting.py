"""Where a kernel and the oracle part: the first stage of the first tile at which they differ.

The emulator records every vector result of the wave in question, the oracle the stages of its decode. Matrix
instructions anchor the comparison: whatever the kernel, its scores are 16x16x32 products of keys and queries,
and its output 16x16x16 products of values and probabilities, so operands and results must be the oracle's.
Between two anchors a stage is found by its value: the step that goes wrong is the first whose value no
instruction computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.bits import are_nan, distance, distances, ordinal
from tqkernel.gfx950 import Program
from tqkernel.gfx950 import encoding as enc
from tqkernel.gfx950.footprint import instruction_name
from tqkernel.gfx950.state import Trace
from tqkernel.verdict import Difference, Parting
from tqref import Case, Profile, Tile, tiles
from tqref.layout import TILE_TOKENS
from tqref.numerics import f32_to_bf16

SCORE_INSTRUCTION, OUTPUT_INSTRUCTION = "v_mfma_f32_16x16x32_bf16", "v_mfma_f32_16x16x16_bf16"
_OPERAND_REGISTERS = {SCORE_INSTRUCTION: (4, 4, 4), OUTPUT_INSTRUCTION: (2, 2, 4)}
_SCORES_PER_TILE, _OUTPUTS_PER_TILE = 4, 8
_PACKING = ("v_cvt_pk", "v_pack_", "v_perm_")
"""Instructions whose results are two halves, not a float32, though they may look like one."""
_LANE = np.arange(enc.LANES)
_COLUMN, _GROUP = _LANE % 16, _LANE // 16

Bits = NDArray[np.uint32]
Mask = NDArray[np.bool_]


# ---------------------------------------------------------------- what the oracle expects, lane by lane


@dataclass(frozen=True, eq=False)
class _Expected:
    """One register's worth of a stage: bits of 64 lanes, which lanes count, and what element a lane holds."""

    stage: str
    bits: Bits
    lanes: Mask
    is_pair: bool
    """Two bfloat16s rather than one float32."""
    element: Callable[[int, int], tuple[int | None, int | None, int | None]]
    """(lane, half) -> token within the tile, row, dim."""


def _float(values: NDArray[np.float32]) -> Bits:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def _pairs(low: NDArray[np.uint16], high: NDArray[np.uint16]) -> Bits:
    return (low.astype(np.uint32) | high.astype(np.uint32) << 16).astype(np.uint32)


def _keys(tile: Tile, chunk: int) -> list[_Expected]:
    """Operand A of score instruction `chunk`: lane l holds token l % 16, eight dims."""
    words = []
    for word in range(4):
        dim = 32 * chunk + 8 * _GROUP + 2 * word
        bits = _pairs(tile.keys[_COLUMN, dim], tile.keys[_COLUMN, dim + 1])
        first = 32 * chunk + 2 * word

        def element(lane: int, half: int, first: int = first) -> tuple[int | None, int | None, int | None]:
            return lane % 16, None, first + 8 * (lane // 16) + half

        words.append(_Expected("key", bits, tile.live[_COLUMN], True, element))
    return words


def _by_token(
    stage: str, values: NDArray[np.float32], tile: Tile, rows: Mask, live_only: bool
) -> list[_Expected]:
    """values [QG, 16] as a score instruction leaves them.

    Register e, lane l holds token 4 (l // 16) + e, row l % 16.
    """
    registers = []
    padded = np.zeros((16, TILE_TOKENS), np.float32)
    padded[: len(values)] = values
    for e in range(4):
        token = 4 * _GROUP + e
        lanes = rows & tile.live[token] if live_only else rows

        def element(lane: int, half: int, e: int = e) -> tuple[int | None, int | None, int | None]:
            return 4 * (lane // 16) + e, lane % 16, None

        registers.append(_Expected(stage, _float(padded[_COLUMN, token]), lanes, False, element))
    return registers


def _by_row(stage: str, values: NDArray[np.float32], rows: Mask) -> list[_Expected]:
    """values [QG], the same in the four lanes of a row."""
    padded = np.zeros(16, np.float32)
    padded[: len(values)] = values

    def element(lane: int, half: int) -> tuple[int | None, int | None, int | None]:
        return None, lane % 16, None

    return [_Expected(stage, _float(padded[_COLUMN]), rows, False, element)]


def _probability_pairs(tile: Tile, rows: Mask) -> list[_Expected]:
    """Operand B of an output instruction: lane l holds row l % 16, tokens 4 (l // 16) and up."""
    rounded = np.zeros((16, TILE_TOKENS), np.uint16)
    rounded[: len(tile.probabilities)] = f32_to_bf16(tile.probabilities)
    words = []
    for word in range(2):
        token = 4 * _GROUP + 2 * word

        def element(lane: int, half: int, word: int = word) -> tuple[int | None, int | None, int | None]:
            return 4 * (lane // 16) + 2 * word + half, lane % 16, None

        bits = _pairs(rounded[_COLUMN, token], rounded[_COLUMN, token + 1])
        words.append(_Expected("probability, rounded to bfloat16", bits, rows, True, element))
    return words


def _values(tile: Tile, chunk: int) -> list[_Expected]:
    """Operand A of output instruction `chunk`: lane l is dim 16 chunk + l % 16, tokens from 4 (l // 16)."""
    words = []
    dim = 16 * chunk + _COLUMN
    for word in range(2):
        token = 4 * _GROUP + 2 * word

        def element(lane: int, half: int, word: int = word) -> tuple[int | None, int | None, int | None]:
            return 4 * (lane // 16) + 2 * word + half, None, 16 * chunk + lane % 16

        bits = _pairs(tile.values[token, dim], tile.values[token + 1, dim])
        words.append(_Expected("value", bits, np.ones(enc.LANES, bool), True, element))
    return words


def _without_harmless(tile: Tile, operand: Bits) -> Bits:
    """Operand A of an output instruction with 0, as the oracle has it, for each finite value of a dead token.

    A kernel may leave any number there: times a probability of 0 it adds nothing.
    """
    halves = operand[..., None].view(np.uint16).reshape(*operand.shape, 2).copy()
    token = 4 * _GROUP[:, None] + np.arange(2)
    for word, values in enumerate(halves):
        values[~tile.live[token + 2 * word] & ((values & 0x7F80) != 0x7F80)] = 0
    return halves.view(np.uint32)[..., 0]


def _by_dim(stage: str, values: NDArray[np.float32], chunk: int, rows: Mask) -> list[_Expected]:
    """values [QG, 128] in output instruction `chunk`.

    Register e, lane l holds row l % 16, dim 16 chunk + 4 (l // 16) + e.
    """
    registers = []
    padded = np.zeros((16, values.shape[1]), np.float32)
    padded[: len(values)] = values
    for e in range(4):

        def element(lane: int, half: int, e: int = e) -> tuple[int | None, int | None, int | None]:
            return None, lane % 16, 16 * chunk + 4 * (lane // 16) + e

        bits = _float(padded[_COLUMN, 16 * chunk + 4 * _GROUP + e])
        registers.append(_Expected(stage, bits, rows, False, element))
    return registers


# ---------------------------------------------------------------- what the kernel did


@dataclass(frozen=True, eq=False)
class _Matrix:
    """One execution of a matrix instruction: its place in the trace, row, operands and result.

    a, b, c, d: uint32 [registers, 64].
    """

    at: int
    row: int
    a: Bits
    b: Bits
    c: Bits
    d: Bits


class _Recording:
    """A wave's trace, replayed: matrix instructions with their operands, and every value by its bits."""

    def __init__(self, program: Program, trace: Trace) -> None:
        self.program, self.trace = program, trace
        self.scores: list[_Matrix] = []
        self.outputs: list[_Matrix] = []
        self._last: dict[bytes, dict[bytes, int]] = {}
        packing = [
            row for row in np.unique(trace.rows) if instruction_name(program, row).startswith(_PACKING)
        ]
        self._is_packed = np.isin(trace.rows, packing)
        registers = np.zeros((enc.VECTOR_ROWS, enc.LANES), np.uint32)
        at = 0
        rows, names, values = trace.rows.tolist(), trace.registers.tolist(), trace.values
        while at < len(rows):
            row, name = rows[at], ""
            code = program.code[row]
            count = 1
            if code[enc.UNIT] == enc.UNIT_MATRIX:
                name = instruction_name(program, row)
                count = int(code[enc.DESTINATION_MODE]) & 0x3F
            if name in _OPERAND_REGISTERS:
                words = _OPERAND_REGISTERS[name]
                a, b, c = (self._operand(registers, program, row, k, words[k]) for k in range(3))
                into = self.scores if name == SCORE_INSTRUCTION else self.outputs
                into.append(_Matrix(at, row, a, b, c, values[at : at + count]))
            for offset in range(count):
                registers[names[at + offset]] = values[at + offset]
            at += count

    @staticmethod
    def _operand(registers: Bits, program: Program, row: int, k: int, words: int) -> Bits:
        first = int(program.code[row, enc.SOURCE + k])
        if first < 0:
            constant = int(program.literals[row, k]) & 0xFFFFFFFF
            return np.full((words, enc.LANES), constant, np.uint32)
        return registers[first : first + words].copy()

    def find(self, expected: _Expected, start: int) -> bool:
        """Whether some instruction from `start` of the trace on computed that float32 value.

        There is no end: in straight-line code a compiler may put off for many tiles what only the last needs.
        """
        key = expected.lanes.tobytes()
        if key not in self._last:
            floats = np.flatnonzero(~self._is_packed)
            values = _canonical(self.trace.values[floats][:, expected.lanes])
            self._last[key] = {line.tobytes(): at for at, line in zip(floats.tolist(), values, strict=True)}
        return self._last[key].get(_canonical(expected.bits[expected.lanes]).tobytes(), -1) >= start


def _canonical(bits: Bits) -> Bits:
    """The same float32 bits with every NaN the same."""
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FC00000), bits)


def _wrong_lane(expected: _Expected, actual: Bits) -> tuple[int, int] | None:
    """(lane, half) of the first element that differs, None if none does."""
    if expected.is_pair:
        for lane in np.flatnonzero(expected.lanes & (expected.bits != actual)).tolist():
            for half in range(2):
                want, got = (int(bits[lane]) >> 16 * half & 0xFFFF for bits in (expected.bits, actual))
                if want != got and not are_nan(want, got, width=16):
                    return lane, half
        return None
    differs = expected.lanes & (_canonical(expected.bits) != _canonical(actual))
    lanes = np.flatnonzero(differs)
    return (int(lanes[0]), 0) if lanes.size else None


# ---------------------------------------------------------------- the search


class Wave:
    """One wave of a kernel, recorded, beside the stages that the oracle has for it.

    wave: (sequence, KV head, partition). Raises RunError as `EmulatorBackend.run` does.
    """

    def __init__(
        self,
        case: Case,
        wave: tuple[int, int, int],
        hw_v_transpose: bool,
        backend: EmulatorBackend,
        profile: Profile,
    ) -> None:
        self.program, trace = backend.trace(case, hw_v_transpose, profile, wave)
        self.tiles = list(tiles(case, *wave, profile))
        self._recording = _Recording(self.program, trace)
        self._rows = case.query_group_size > _COLUMN
        self._chunk_of_row = _chunk_of_row(self.tiles, self._recording.outputs, self._rows)

    @property
    def recognised(self) -> bool:
        """Whether the kernel has the matrix instructions by which the stages of every tile are told apart."""
        scores, outputs = (len(found) for found in (self._recording.scores, self._recording.outputs))
        return min(scores // _SCORES_PER_TILE, outputs // _OUTPUTS_PER_TILE) >= len(self.tiles)

    def parting(self) -> Parting | None:
        """Where the kernel first leaves the oracle.

        None if all stages agree (then the last step, from accumulator and sum to output, is wrong), or if the
        stages up to the parting are not `recognised`.
        """
        for tile, scores, outputs, window in self._matrices():
            parting = next(_tile_partings(self._recording, tile, scores, outputs, window, self._rows), None)
            if parting is not None:
                return parting
        return None

    def stage_errors(self) -> dict[str, NDArray[np.float64]]:
        """Largest distance of kernel and oracle, in ulps, at each stage of each tile.

        float64 [tiles] for each of STAGES; infinite where only one of two is a NaN, or where nothing like the stage
        was computed. Fewer tiles than the oracle's if the others are not `recognised`.
        """
        errors: dict[str, list[float]] = {name: [] for name in STAGES}
        for tile, scores, outputs, window in self._matrices():
            # What goes into and comes out of matrix instructions is where it is; the rest is found by its value.
            anchored = {
                "key": [(_keys(tile, chunk), matrix.a) for chunk, matrix in enumerate(scores)],
                "score": [(_by_token("", tile.products[-1], tile, self._rows, live_only=True), scores[-1].d)],
                "value": [
                    (_values(tile, chunk), _without_harmless(tile, matrix.a))
                    for chunk, matrix in enumerate(outputs)
                ],
                "accumulator": [
                    (_by_dim("", tile.accumulator, chunk, self._rows), matrix.d)
                    for chunk, matrix in enumerate(outputs)
                ],
            }
            for name, registers in anchored.items():
                pairs = (pair for wanted, got in registers for pair in zip(wanted, got, strict=True))
                errors[name].append(max(_largest_distance(want, got) for want, got in pairs))
            found = {
                "maximum": _by_row("", tile.maximum, self._rows),
                "probability": _by_token("", tile.probabilities, tile, self._rows, live_only=False),
                "rescale": _by_row("", tile.rescale, self._rows),
                "sum": _by_row("", tile.total, self._rows),
            }
            for name, wanted in found.items():
                errors[name].append(max(self._distance_of_nearest(want, window) for want in wanted))
        return {name: np.array(errors[name]) for name in STAGES}

    def _distance_of_nearest(self, want: _Expected, window: slice) -> float:
        if self._recording.find(want, window.start):
            return 0.0
        nearest = _nearest(self._recording, want, window)
        return np.inf if nearest is None else _largest_distance(want, self._recording.trace.values[nearest])

    def _matrices(self) -> Iterator[tuple[Tile, list[_Matrix], list[_Matrix], slice]]:
        """Each tile with its matrix instructions, of the scores and, in order of their dims, of the output.

        And the part of the trace in which the rest of the tile is computed: from its scores to the next tile's.
        """
        recording = self._recording
        for index, tile in enumerate(self.tiles):
            scores = recording.scores[_SCORES_PER_TILE * index :][: _SCORES_PER_TILE + 1]
            outputs = recording.outputs[_OUTPUTS_PER_TILE * index :][:_OUTPUTS_PER_TILE]
            if len(scores) < _SCORES_PER_TILE or len(outputs) < _OUTPUTS_PER_TILE:
                return
            last = scores[_SCORES_PER_TILE - 1].at
            past = scores[-1].at if len(scores) > _SCORES_PER_TILE else len(recording.trace.rows)
            window = slice(last, max(past, *(matrix.at + 1 for matrix in outputs)))
            ordered = sorted(outputs, key=lambda matrix: self._chunk_of_row[matrix.row])
            yield tile, scores[:_SCORES_PER_TILE], ordered, window


STAGES = ("key", "score", "maximum", "probability", "rescale", "value", "accumulator", "sum")
"""What `Wave.stage_errors` tells apart, in the order in which a tile computes it."""


def _largest_distance(expected: _Expected, actual: Bits) -> float:
    """In ulps, over the lanes that count; infinite where only one of two is a NaN."""
    want, got = expected.bits[expected.lanes], actual[expected.lanes]
    if expected.is_pair:
        want, got = want.view(np.uint16), np.ascontiguousarray(got).view(np.uint16)
    return float(distances(want, got).max(initial=0))


def find_parting(
    case: Case, difference: Difference, hw_v_transpose: bool, backend: EmulatorBackend, profile: Profile
) -> Parting | None:
    """Where the wave of `difference` first leaves the oracle; see `Wave.parting`."""
    wave = difference.sequence, difference.head, difference.partition
    return Wave(case, wave, hw_v_transpose, backend, profile).parting()


def _tile_partings(
    recording: _Recording,
    tile: Tile,
    scores: Sequence[_Matrix],
    outputs: Sequence[_Matrix],
    window: slice,
    rows: Mask,
) -> Iterator[Parting]:
    """Differences of a tile, in the order the decode computes its stages; see `Wave._matrices`."""
    for chunk, matrix in enumerate(scores):
        yield from _anchored(recording, tile, _keys(tile, chunk), matrix, matrix.a)
        stage = f"score after dims {32 * chunk}..{32 * chunk + 31}"
        products = _by_token(stage, tile.products[chunk], tile, rows, live_only=True)
        yield from _anchored(recording, tile, products, matrix, matrix.d)
    probability = list(_anchored(recording, tile, _probability_pairs(tile, rows), outputs[0], outputs[0].b))
    softmax = [
        *_by_token("score, scaled and masked", tile.scores, tile, rows, live_only=False),
        *_by_row("running maximum", tile.maximum, rows),
        *_by_token("probability", tile.probabilities, tile, rows, live_only=False),
        *_by_row("rescale factor", tile.rescale, rows),
    ]
    if probability:
        yield from _missing(recording, tile, softmax[:-1], window)
        yield from probability
    for chunk, matrix in enumerate(outputs):
        actual = _without_harmless(tile, matrix.a)
        yield from _anchored(recording, tile, _values(tile, chunk), matrix, actual)
    for chunk, matrix in enumerate(outputs):
        before = _by_dim("accumulator, rescaled", tile.rescaled, chunk, rows)
        rescaled = list(_anchored(recording, tile, before, matrix, matrix.c))
        if rescaled:
            yield from _missing(recording, tile, softmax[-1:], window)
            yield from rescaled
        after = _by_dim("accumulator", tile.accumulator, chunk, rows)
        yield from _anchored(recording, tile, after, matrix, matrix.d)
    total = list(_missing(recording, tile, _by_row("running sum", tile.total, rows), window))
    if total:
        yield from _missing(recording, tile, softmax, window)
        yield from total


def _chunk_of_row(stages: Sequence[Tile], outputs: Sequence[_Matrix], rows: Mask) -> dict[int, int]:
    """Which 16 dims each output instruction of the listing is for.

    A compiler may reorder them, so it is found by which values and accumulators they are given, over all tiles of the
    wave.
    """
    likeness: dict[int, NDArray[np.int64]] = {}
    for tile, first in zip(stages, range(0, len(outputs), _OUTPUTS_PER_TILE), strict=False):
        expected = [
            [*_values(tile, chunk), *_by_dim("", tile.rescaled, chunk, rows)]
            for chunk in range(_OUTPUTS_PER_TILE)
        ]
        for matrix in outputs[first : first + _OUTPUTS_PER_TILE]:
            actual = [*_without_harmless(tile, matrix.a), *matrix.c]
            equal = likeness.setdefault(matrix.row, np.zeros(_OUTPUTS_PER_TILE, np.int64))
            for chunk, registers in enumerate(expected):
                for want, got in zip(registers, actual, strict=True):
                    equal[chunk] += ((want.bits == got) & want.lanes).sum()
    return {row: int(equal.argmax()) for row, equal in likeness.items()}


def _anchored(
    recording: _Recording, tile: Tile, expected: Sequence[_Expected], matrix: _Matrix, actual: Bits
) -> Iterator[Parting]:
    """The first element of a matrix instruction's operand or result that is wrong."""
    for want, got in zip(expected, actual, strict=True):
        wrong = _wrong_lane(want, got)
        if wrong is not None:
            yield _parting(recording, tile, want, wrong, got, matrix.row)
            return


_CLOSE = 1 << 16
"""Within so many representable float32s a value is taken for a wrong attempt at another: 1 part in 128."""


def _missing(
    recording: _Recording, tile: Tile, expected: Sequence[_Expected], window: slice
) -> Iterator[Parting]:
    """The first stage whose value no instruction computed, with the nearest that the window has to show."""
    for want in expected:
        if recording.find(want, window.start):
            continue
        nearest = _nearest(recording, want, window)
        lane = int(np.flatnonzero(want.lanes)[0])
        if nearest is None:
            yield _parting(recording, tile, want, (lane, 0), None, None)
            return
        values = recording.trace.values[nearest]
        wrong = _wrong_lane(want, values) or (lane, 0)
        yield _parting(recording, tile, want, wrong, values, int(recording.trace.rows[nearest]))
        return


def _nearest(recording: _Recording, want: _Expected, window: slice) -> int | None:
    """Where in the trace, within the window, the likeliest attempt at a value is; None if nothing comes close."""
    values = recording.trace.values[window]
    apart = np.abs(ordinal(values[:, want.lanes]) - ordinal(want.bits[want.lanes]))
    close = (apart < _CLOSE).sum(axis=1) + (apart == 0).sum(axis=1)
    # A constant that happens to fit many lanes is no attempt at the stage.
    close[(values == values[:, :1]).all(axis=1)] = 0
    nearest = int(close.argmax())
    return window.start + nearest if close[nearest] >= want.lanes.sum() else None


def _parting(
    recording: _Recording,
    tile: Tile,
    want: _Expected,
    at: tuple[int, int],
    actual: Bits | None,
    row: int | None,
) -> Parting:
    lane, half = at
    width = 16 if want.is_pair else 32

    def bits_of(bits: Bits) -> int:
        return int(bits[lane]) >> 16 * half & 0xFFFF if want.is_pair else int(bits[lane])

    token, query_row, dim = want.element(lane, half)
    expected, got = bits_of(want.bits), None if actual is None else bits_of(actual)
    return Parting(
        stage=want.stage,
        tile=tile.start,
        token=None if token is None else tile.start + token,
        row=query_row,
        dim=dim,
        expected=expected,
        actual=got,
        width=width,
        ulps=None if got is None else distance(expected, got, width),
        line=0 if row is None else int(recording.program.lines[row]),
        text="" if row is None else recording.program.line(row),
        source=None if row is None else recording.program.locations.get(int(recording.program.lines[row])),
    )


# ---------------------------------------------------------------- shrinking


def shrink(case: Case, waves: Iterable[tuple[int, int]], fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: one sequence, one head, as few tokens as can be found by halving.

    waves: (sequence, KV head)s to try alone.
    """
    case = next((alone for wave in waves if fails(alone := case.only(*wave))), case)
    low, high = 0, int(case.seq_lens.max(initial=0))
    while high - low > 1:
        middle = (low + high) // 2
        if fails(case.truncated(middle)):
            high = middle
        else:
            low = middle
    small = case.truncated(high)
    return small.only(0, 0) if (small.num_sequences, small.num_kv_heads) == (1, 1) else small
