"""The page of `--report`: verdicts, and of each failure where it parts, in pictures and in bits.

One file of HTML, with its style and its pictures inside, for phones and desktops, light and dark. The pictures lie
beside it, too, and the listings whose lines it quotes.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tqkernel import pictures
from tqkernel.bits import bit_patterns, describe_bits, differing_bits, distances
from tqkernel.explain import Failure
from tqkernel.gate import OUTPUTS, differences
from tqkernel.gfx950 import Program
from tqkernel.involved import Involved, block_of, involved_bytes
from tqkernel.verdict import Difference, Parting, Verdict
from tqref.layout import TILE_TOKENS

PAGE = "index.html"
MOST_DIFFERENCES = 24
"""Rows of the table of disagreeing values."""
MOST_PARTITIONS = 6
"""Panels of the picture of differing bits."""
LISTING_LINES, SOURCE_LINES = 6, 3
"""Quoted before and after the one in question."""
MOST_VERDICTS, MOST_RUNS = 12, 6
"""Rows of the tables of cases and of bytes that are shown without being asked for."""


def write_page(folder: Path, verdicts: Sequence[Verdict], failures: Sequence[Failure]) -> Path:
    """Write the page, its pictures and listings into `folder`; returns the page's path.

    Raises OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    explained = {failure.verdict.name: failure for failure in failures if failure.actual is not None}
    sections = [_failure(failure, folder) for failure in explained.values()]
    failed = sum(not verdict.ok for verdict in verdicts)
    all_cases = "1 case" if len(verdicts) == 1 else f"{len(verdicts)} cases"
    outcome = f"{failed} of {all_cases} FAILED" if failed else f"{all_cases} ok"
    told = [verdict for verdict in verdicts if verdict.error is not None or verdict.findings]
    others = {verdict.name: verdict for verdict in told if verdict.name not in explained}
    sections += map(_told, others.values())
    unexplained = failed - len(sections)
    note = "<p>The first of each kind that differs is explained below.</p>" if unexplained and explained else ""
    body = "\n".join([_header(outcome, verdicts), note, _verdicts(verdicts, explained | others), *sections])
    path = folder / PAGE
    path.write_text(_PAGE.format(title=f"tqgate: {outcome}", style=_STYLE, body=body), encoding="utf-8")
    return path


# ---------------------------------------------------------------- pieces of HTML


def _text(value: object) -> str:
    return html.escape(str(value))


def _code(value: object) -> str:
    return f"<code>{_text(value)}</code>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already. numbers: the columns to align to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if index in numbers else "" for index in range(len(cells))]
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    head = line(list(map(_text, header)), "th")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _facts(facts: dict[str, str]) -> str:
    """Names and values, which are HTML already."""
    return "<dl>" + "".join(f"<div><dt>{_text(k)}</dt><dd>{v}</dd></div>" for k, v in facts.items()) + "</dl>"


def _figure(draw: pictures.Draw, title: str, caption: str, path: Path) -> str:
    """A picture for light and dark pages, inside the page; that for light ones is also written to `path`."""
    drawn = {theme.name: draw(theme) for theme in pictures.THEMES}
    path.write_bytes(drawn["light"])
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(drawn[name]).decode()}" for name in ("light", "dark")
    )
    return (
        f'<figure><h3>{_text(title)}</h3><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{_text(caption)}"></picture><figcaption>{_text(caption)}</figcaption></figure>'
    )


# ---------------------------------------------------------------- all cases


def _header(outcome: str, verdicts: Sequence[Verdict]) -> str:
    ok = all(verdict.ok for verdict in verdicts)
    compared = sum(verdict.bits_compared for verdict in verdicts)
    differing = sum(verdict.bits_differing for verdict in verdicts)
    where = sorted({f"{verdict.backend}, arithmetic {verdict.profile}" for verdict in verdicts})
    return (
        f'<header><h1>tqgate <span class="{"ok" if ok else "bad"}">{_text(outcome)}</span></h1>'
        f"<p>{differing:,} of {compared:,} bits differ. Run on: {_text('; '.join(where))}.</p></header>"
    )


def _verdicts(verdicts: Sequence[Verdict], explained: Container[str]) -> str:
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.ok):
        name = _text(verdict.name)
        link = f'<a href="#{name}">{name}</a>' if verdict.name in explained else name
        wrong = "stopped" if verdict.error is not None else "differs" if verdict.bits_differing else "unsound"
        outcome = "ok" if verdict.ok else wrong
        badge = f'<span class="{"ok" if verdict.ok else "bad"}">{outcome}</span>'
        numbers = [f"{verdict.bits_differing:,}", f"{verdict.worst_ulps:,}", f"{verdict.max_error:.1e}"]
        rows.append([link, badge, *numbers, f"{verdict.tokens:,}"])
    header = ["case", "verdict", "bits differing", "worst ulps", "max error", "tokens"]
    return _folded(header, rows, (2, 3, 4, 5), MOST_VERDICTS)


def _folded(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int], most: int) -> str:
    """A table whose further rows are shown when they are asked for."""
    shown, rest = _table(header, rows[:most], numbers), rows[most:]
    if not rest:
        return shown
    return f"{shown}<details><summary>{len(rest)} more</summary>{_table(header, rest, numbers)}</details>"


# ---------------------------------------------------------------- one failure


def _failure(failure: Failure, folder: Path) -> str:
    verdict = failure.verdict
    assert verdict.first is not None and failure.actual is not None
    found = differences(failure.expected, failure.actual, strict=failure.strict)
    parts = [
        _summary(failure, found),
        _findings(verdict),
        _parting(failure, folder),
        f'<div class="figures">{"".join(_figures(failure, folder))}<div>{_involved(failure)}</div></div>',
        _disagreeing(found),
        _commands(failure),
    ]
    name = _text(verdict.name)
    return f'<section id="{name}"><h2>{name}</h2>\n' + "\n".join(filter(None, parts)) + "</section>"


def _told(verdict: Verdict) -> str:
    """Where there are no differing bits to look into: why the kernel stopped, or what the sanitizer found."""
    name = _text(verdict.name)
    stopped = "" if verdict.error is None else f"<h3>The kernel stopped</h3><p>{_text(verdict.error)}</p>"
    notes = "".join(f"<p>{_text(note)}</p>" for note in verdict.notes)
    return f'<section id="{name}"><h2>{name}</h2>\n{stopped}{_findings(verdict)}{notes}</section>'


def _findings(verdict: Verdict) -> str:
    lines = "".join(f"<p>{_text(finding)}</p>" for finding in verdict.findings)
    return f"<h3>The sanitizer found</h3>{lines}" if lines else ""


def _summary(failure: Failure, found: Sequence[Difference]) -> str:
    verdict, case = failure.verdict, failure.case
    waves = {(entry.sequence, entry.head, entry.partition) for entry in found}
    all_waves = case.num_sequences * case.num_kv_heads * case.num_partitions
    lengths = ", ".join(map(str, case.seq_lens[:12].tolist())) + (", ..." if case.num_sequences > 12 else "")
    facts = {
        "differing": f"{verdict.bits_differing:,} of {verdict.bits_compared:,} bits, in {len(found):,} elements",
        "waves": f"{len(waves)} of {all_waves} (sequence, KV head, partition) have a difference",
        "first": _code(verdict.first),
        # Where all that differs is NaN, no two numbers are apart.
        **({"worst": f"{verdict.worst_ulps:,} ulps"} if verdict.worst_ulps else {}),
        "case": f"sequences of {_text(lengths)} tokens; {case.num_kv_heads} KV heads; query group "
        f"{case.query_group_size}; blocks of {case.kv_block_size} tokens; {case.num_partitions} partitions",
        "origin": _text(case.origin) or "not said",
    }
    return _facts(facts)


def _parting(failure: Failure, folder: Path) -> str:
    parting, wave = failure.verdict.parting, failure.wave
    news = [note for note in failure.verdict.notes if not any(line in note for line in failure.commands)]
    notes = "".join(f"<p>{_text(note)}</p>" for note in news)
    if parting is None or wave is None:
        return f"<h3>Where they part</h3>{notes or '<p>Only the emulator can tell.</p>'}"
    axes = {"tile at token": parting.tile, "token": parting.token, "row": parting.row, "dim": parting.dim}
    kernel = (
        "computed nowhere" if parting.actual is None else _code(describe_bits(parting.actual, parting.width))
    )
    facts = {
        "stage": f"<strong>{_text(parting.stage)}</strong>",
        "where": ", ".join(f"{name} {index}" for name, index in axes.items() if index is not None),
        "kernel": kernel,
        "oracle": _code(describe_bits(parting.expected, parting.width)),
        "apart": "not comparable" if parting.ulps is None else f"{parting.ulps:,} ulps",
    }
    quotes = _instruction(failure, wave.program, parting, folder)
    return f"<h3>Where they part</h3>{_facts(facts)}{quotes}{notes}"


def _instruction(failure: Failure, program: Program, parting: Parting, folder: Path) -> str:
    """The listing and the kernel's source around the instruction, and the whole listing beside the page."""
    if not parting.line:
        return "<p>No instruction computed anything like it.</p>"
    file = f"{failure.verdict.name}.s"
    (folder / file).write_text("\n".join(program.text) + "\n", encoding="utf-8")
    quoted = f"<h3>Listing, line {parting.line} of {_code(file)}</h3>" + _quote(
        _listing_around(program, parting.line), parting.line
    )
    if parting.source is None:
        return quoted
    name, line = parting.source
    source = source_lines(program, name)
    title = f"<h3>Kernel source, line {line} of {_code(name)}</h3>"
    around = range(max(1, line - SOURCE_LINES), min(len(source), line + SOURCE_LINES) + 1)
    return quoted + title + (_quote([(n, source[n - 1]) for n in around], line) if source else "<p>Not found.</p>")


def _quote(lines: Iterable[tuple[int, str]], marked: int) -> str:
    def line(number: int, text: str) -> str:
        content = f"<i>{number:>5}</i> {_text(text.expandtabs(4))}"
        return f"<mark>{content}</mark>" if number == marked else f"<span>{content}</span>"

    return "<pre>" + "".join(line(number, text) for number, text in lines) + "</pre>"


def _listing_around(program: Program, line: int) -> list[tuple[int, str]]:
    """The lines around one, without directives such as those of debug locations."""
    numbered = [(number, text) for number, text in enumerate(program.text, 1) if _is_code(text) or number == line]
    at = next(index for index, (number, _) in enumerate(numbered) if number == line)
    return numbered[max(0, at - LISTING_LINES) : at + LISTING_LINES + 1]


def _is_code(text: str) -> bool:
    plain = text.split(";")[0].strip()
    is_label = plain.endswith(":")
    return bool(plain) and (is_label or not plain.startswith(".")) and not plain.startswith(".Ltmp")


def source_lines(program: Program, name: str) -> list[str]:
    """The source file that a listing's debug locations name; nothing if it is not where it was compiled."""
    for text in program.text:
        match = re.match(r'\s*\.file\s+\d+\s+"([^"]*)"\s+"([^"]*)"', text)
        if match and match[2] == name:
            try:
                return (Path(match[1]) / name).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                return []
    return []


# ---------------------------------------------------------------- pictures


def _figures(failure: Failure, folder: Path) -> Iterator[str]:
    name, case, first = failure.verdict.name, failure.case, failure.verdict.first
    assert first is not None
    which = f"sequence {first.sequence}, KV head {first.head}"
    counts = _counts(failure, first)
    partitions = f"the first {len(counts)} partitions that differ" if len(counts) == MOST_PARTITIONS else "partitions"
    yield _figure(
        pictures.differing_bits(counts),
        "Which bits differ",
        f"{which}, {partitions} with a difference: differing bits by query row and dim",
        folder / f"{name}-bits.png",
    )
    rows, columns, label, marked = _distances(failure, first)
    where = f"{which}, partition {first.partition}" if label.startswith("tile") else which
    yield _figure(
        pictures.distances_by_column(rows, columns, label, marked),
        "How far apart",
        f"{where}: largest distance of kernel and oracle" + (", framed where they part" if marked is not None else ""),
        folder / f"{name}-ulps.png",
    )
    parting = failure.verdict.parting
    if parting is not None:
        involved = involved_bytes(case, first.sequence, first.head, parting)
        block = block_of(case, first.sequence, parting.tile)
        yield _figure(
            pictures.block_layout(case.layout, involved),
            "Which bytes of the cache",
            f"block {block} of {case.layout.block_bytes} bytes as it lies in memory, with what goes into the first "
            "wrong element",
            folder / f"{name}-block.png",
        )


def _counts(failure: Failure, first: Difference) -> dict[int, dict[str, np.ndarray]]:
    """Differing bits of the first difference's sequence and head, by partition and output."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for partition in range(failure.case.num_partitions):
        place = first.sequence, first.head, partition
        counts = {
            name: np.bitwise_count(
                differing_bits(
                    getattr(failure.expected, name)[place],
                    getattr(failure.actual, name)[place],
                    strict=failure.strict,
                )
            )
            for name in OUTPUTS
        }
        if any(part.any() for part in counts.values()) and len(found) < MOST_PARTITIONS:
            found[partition] = counts
    return found


def _distances(
    failure: Failure, first: Difference
) -> tuple[dict[str, np.ndarray], list[int], str, int | None]:
    """Lines, columns, label and marked column: the stages by tile, or the outputs by partition where unknown."""
    wave, parting = failure.wave, failure.verdict.parting
    if wave is not None and wave.recognised and wave.tiles:
        starts = [tile.start for tile in wave.tiles]
        marked = None if parting is None else starts.index(parting.tile)
        return wave.stage_errors(), starts, f"tile of {TILE_TOKENS} tokens, by its first token", marked
    place = first.sequence, first.head
    rows = {}
    for name in OUTPUTS:
        bits = [bit_patterns(getattr(side, name)[place]) for side in (failure.expected, failure.actual)]
        rows[name] = distances(*bits).reshape(failure.case.num_partitions, -1).max(axis=1)
    return rows, list(range(failure.case.num_partitions)), "partition", None


# ---------------------------------------------------------------- tables


def _involved(failure: Failure) -> str:
    parting, first, case = failure.verdict.parting, failure.verdict.first, failure.case
    if parting is None or first is None:
        return ""
    entries = involved_bytes(case, first.sequence, first.head, parting)
    block = block_of(case, first.sequence, parting.tile)
    start = block * case.layout.block_bytes
    rows = [
        [
            _text(entry.name),
            _content(entry),
            str(entry.token),
            str(entry.slot),
            _code(f"{entry.offset:#06x}"),
            _code(f"{start + entry.offset:#x}"),
        ]
        for entry in entries
    ]
    header = ["what", "bytes", "token", "slot", "in block", "in cache"]
    return f"<h3>Bytes involved, of block {block}</h3>" + _folded(header, rows, (2, 3), MOST_RUNS)


def _content(entry: Involved) -> str:
    """The bytes in hexadecimal, the byte of the dim marked; an fp16's value, too."""
    shown = [f"{byte:02x}" for byte in entry.content]
    if entry.of_dim is not None:
        shown[entry.of_dim] = f"<mark>{shown[entry.of_dim]}</mark>"
    kind = "bytes long" if entry.size > 2 else "bytes"
    value = f" = {np.frombuffer(entry.content, '<f2')[0]:.6g}" if entry.size == 2 else ""
    return f'<code class="{kind}">{" ".join(shown)}</code>{value}'


def _disagreeing(found: Sequence[Difference]) -> str:
    rows = [
        [
            _code(f"{entry.output}[{','.join(map(str, _place(entry)))}]"),
            *(_hex_and_value(bits, entry.width) for bits in (entry.actual, entry.expected)),
            "NaN" if entry.ulps is None else f"{entry.ulps:,}",
        ]
        for entry in found[:MOST_DIFFERENCES]
    ]
    table = _table(["element", "kernel", "oracle", "ulps"], rows, (3,))
    left = len(found) - len(rows)
    more = f"<p>And {left:,} more.</p>" if left else ""
    axes = "<p>Elements by sequence, KV head, partition, query row and, of out, dim.</p>"
    return f"<h3>Values that disagree</h3>{axes}{table}{more}"


def _place(entry: Difference) -> list[int]:
    axes = entry.sequence, entry.head, entry.partition, entry.row, entry.dim
    return [index for index in axes if index is not None]


def _hex_and_value(bits: int, width: int) -> str:
    pattern, value = describe_bits(bits, width).split(" ")
    plain = _text(value.strip("()"))
    return f'{_code(pattern)} <span class="value">{plain}</span>'


def _commands(failure: Failure) -> str:
    if not failure.commands:
        return ""
    lines = "\n".join(_text(command) for command in failure.commands)
    smaller = "<p>The second runs the smaller case alone.</p>" if len(failure.commands) > 1 else ""
    return f'<h3>To see it again</h3><pre class="wrap">{lines}</pre>{smaller}'


# ---------------------------------------------------------------- the page itself

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --faint: #59636e; --line: #d9dee3; --soft: #f4f6f8;
  --bad: #b3121d; --ok: #17713a; --link: #0a58b5; --mark: #ffe9a8; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --ink: #e6e9ed; --faint: #9aa5b1; --line: #323a43;
  --soft: #1c2229; --bad: #ff7b85; --ok: #5bd08a; --link: #7db8ff; --mark: #5a4a12; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem clamp(1rem, 4vw, 2.5rem) 3rem; max-width: 80rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.25rem; margin: 0 0 1rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.5rem; }
a { color: var(--link); } .ok { color: var(--ok); } .bad { color: var(--bad); font-weight: 600; }
dl { margin: 0; } dl div { display: grid; grid-template-columns: 5.5rem 1fr; gap: .75rem; padding: .2rem 0; }
dt { color: var(--faint); } dd { margin: 0; min-width: 0; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: .84rem; }
pre { background: var(--soft); padding: .6rem .4rem; border-radius: .4rem; overflow-x: auto; margin: .5rem 0;
  line-height: 1.45; overflow-wrap: normal; }
pre span, pre mark { display: block; min-width: max-content; } pre i { color: var(--faint); font-style: normal; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6rem; }
mark { background: var(--mark); color: inherit; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .88rem; overflow-wrap: normal; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { color: var(--faint); font-weight: 500; } .n { text-align: right; font-variant-numeric: tabular-nums; }
.bytes { display: inline-block; max-width: 24ch; } .bytes.long { width: 24ch; white-space: normal; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem;
  align-items: start; }
figure { margin: 0; max-width: 32rem; } figure img { width: 100%; height: auto; display: block; }
.value { display: inline-block; min-width: 6.5rem; }
figcaption { color: var(--faint); font-size: .88rem; } summary { cursor: pointer; padding: .3rem 0; }
@media (max-width: 40rem) { table { font-size: .78rem; } td code { font-size: .72rem; }
  th, td { padding-right: .5rem; } .value { display: block; min-width: 0; } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
