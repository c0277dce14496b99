"""The page of `--report`: it says what is wrong, and needs nothing but itself."""

from __future__ import annotations

import base64
import html
import importlib.util
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tqkernel import page, pictures, runner
from tqkernel.cases import CASES
from tqkernel.cli import main
from tqkernel.compile import compile_listing
from tqkernel.involved import involved_bytes
from tqkernel.verdict import Parting, Verdict
from tqref import Case, Partials, decode
from tqref.codec import unpack_nibbles

NAME = "ragged_qg8_bs16_hwtr"
PNG = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "img", "source", "br"}


class Checker(HTMLParser):
    """Fails for tags that are not closed in order; collects attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def parsed(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text())
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a report on log2(e) in its last bit, and the listing with it."""
    folder = tmp_path_factory.mktemp("report")
    listing = compile_listing(CASES[NAME].variant, debug_locations=True).replace("0x3fb8aa3b", "0x3fb8aa3c")
    (folder / "wrong.s").write_text(listing)
    status = main(
        ["check", NAME, "far_qg8_bs16_hwtr", "ties_qg8_bs16_hwtr", "--no-save", "--listing", str(folder / "wrong.s")]
        + ["--report", str(folder / "report")]
    )
    assert status == 1
    return folder / "report", listing


def test_the_page_has_the_facts(faulty: tuple[Path, str]) -> None:
    folder, listing = faulty
    text = parsed(folder / page.PAGE).text
    assert "2 of 3 cases FAILED" in text
    number, line = next((n, t) for n, t in enumerate(listing.splitlines(), 1) if "v_exp_f32_e32 v102" in t)
    assert f"Listing, line {number} of {NAME}.s" in text and line.strip() in text
    assert (folder / f"{NAME}.s").read_text().splitlines()[number - 1] == line
    assert "probabilities = [_exp2(" in text
    assert "tile at token 0, token 0, row 0" in text
    assert "exp_sums[2,0,0,0]" in text
    assert f"tqgate check {NAME} --listing" in text
    assert f'<section id="{NAME}">' in (folder / page.PAGE).read_text()


def test_the_page_needs_nothing_from_elsewhere(faulty: tuple[Path, str]) -> None:
    content = (faulty[0] / page.PAGE).read_text()
    assert "://" not in content and "<script" not in content and "url(" not in content
    for name, value in parsed(faulty[0] / page.PAGE).attributes:
        if name in ("src", "srcset"):
            assert value.startswith("data:image/png;base64,")
            assert base64.b64decode(value.partition(",")[2]).startswith(PNG)
        if name == "href":
            assert value.startswith("#")
    assert "prefers-color-scheme: dark" in content and 'name="viewport"' in content


def test_pictures_lie_beside_the_page(faulty: tuple[Path, str]) -> None:
    found = {path.name for path in faulty[0].glob("*.png")}
    names = (NAME, "far_qg8_bs16_hwtr")
    assert found == {f"{name}-{kind}.png" for name in names for kind in ("bits", "ulps", "block")}
    assert all((faulty[0] / name).read_bytes().startswith(PNG) for name in found)


def test_what_differs_is_drawn(faulty: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The numbers given to the pictures are those of the fault."""
    given: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def draw(*arguments: Any) -> Any:
            given[name] = arguments
            return lambda theme: PNG

        return draw

    for name in ("differing_bits", "distances_by_column", "block_layout"):
        monkeypatch.setattr(pictures, name, keep(name))
    wrong = tmp_path / "wrong.s"
    wrong.write_text(faulty[1])
    assert main(["check", NAME, "--no-save", "--listing", str(wrong), "--report", str(tmp_path)]) == 1
    (counts,) = given["differing_bits"]
    assert list(counts) == [0]  # sequence 2 has 15 tokens
    assert counts[0]["exp_sums"].shape == (8,) and counts[0]["exp_sums"][0] > 0 and not counts[0]["out"].any()
    rows, columns, _, marked = given["distances_by_column"]
    assert columns == list(range(0, 256, 16)) and marked == 0
    assert rows["probability"][0] > 0 and (rows["sum"] == 1).all()
    assert all(not rows[name].any() for name in ("key", "score", "maximum", "rescale", "value", "accumulator"))
    layout, involved = given["block_layout"]
    assert [(entry.name, entry.offset) for entry in involved] == [
        ("key nibbles", layout.key_offset(0, 0)),
        ("key norm", layout.metadata_offset(0, 0, 0)),
    ]


def parting(stage: str, token: int | None, dim: int | None) -> Parting:
    return Parting(stage, 16, token, 0, dim, 0, 1, 32, 1)


def test_bytes_involved() -> None:
    case = CASES[NAME].build()
    sequence, head, token, dim = 8, 1, 18, 77
    (nibbles, scale, zero) = involved_bytes(case, sequence, head, parting("value", token, dim))
    block = case.blocks[case.rows_of(case.block_tables[sequence, 1:2])[0]]
    start = case.layout.value_offset(2, head)
    assert (nibbles.slot, nibbles.offset, nibbles.size) == (2, start, 64)
    assert nibbles.content == block[start : start + 64].tobytes()
    assert nibbles.of_dim == 38
    assert unpack_nibbles(block[start : start + 64])[dim] == nibbles.content[nibbles.of_dim] >> 4
    assert (scale.name, zero.name) == ("value scale", "value zero")
    assert scale.content == block[scale.offset : scale.offset + 2].tobytes()
    keys = involved_bytes(case, 4, 0, parting("running maximum", None, None))
    assert [(entry.name, entry.token) for entry in keys] == [("key nibbles", 16), ("key norm", 16)]
    assert len(involved_bytes(case, sequence, 0, parting("accumulator", None, 3))) == 16 * 3


def test_all_well_is_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "far_qg8_bs16_hwtr", "--report", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'new' / page.PAGE}"
    assert "1 case ok" in parsed(tmp_path / "new" / page.PAGE).text


class Flipped:
    """A backend that is no emulator: the oracle with an infinity made a NaN, and one bit of `out` flipped."""

    name = "<other> & more"

    def run(self, case: Case, hw_v_transpose: bool, profile: Any) -> Partials:
        partials = decode(case, profile)
        out, maximum = partials.out.copy(), partials.max_logits.copy()
        out[0, 1, 1, 5, 64] ^= np.uint16(1)
        maximum[0, 1, 0, 2] = np.nan
        return replace(partials, out=out, max_logits=maximum)


def test_other_backends_have_no_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.BACKENDS, "emulator", lambda options, announce: Flipped())
    given: list[Any] = []
    monkeypatch.setattr(
        pictures, "distances_by_column", lambda *arguments: given.append(arguments) or (lambda theme: PNG)
    )
    assert main(["check", "far_qg8_bs16_hwtr", "--report", str(tmp_path)]) == 1
    rows, columns, label, marked = given[0]
    assert (columns, label, marked) == ([0, 1], "partition", None)
    assert rows["max_logits"].tolist() == [np.inf, 0] and rows["out"].tolist() == [0, 1]
    text = parsed(tmp_path / page.PAGE).text
    assert "Only the emulator can tell." in text and Flipped.name in text
    assert html.escape(Flipped.name) in (tmp_path / page.PAGE).read_text()
    assert "out[0,1,1,5,64]" in text


class NotANumber(Flipped):
    """The oracle with a NaN in place of a number."""

    def run(self, case: Case, hw_v_transpose: bool, profile: Any) -> Partials:
        partials = decode(case, profile)
        maximum = partials.max_logits.copy()
        maximum[0, 1, 0, 2] = np.nan
        return replace(partials, max_logits=maximum)


@pytest.mark.parametrize("backend, has_worst", [(Flipped, True), (NotANumber, False)])
def test_only_numbers_are_apart(
    backend: type[Flipped], has_worst: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.BACKENDS, "emulator", lambda options, announce: backend())
    assert main(["check", "far_qg8_bs16_hwtr", "--report", str(tmp_path)]) == 1
    assert ("<dt>worst</dt>" in (tmp_path / page.PAGE).read_text()) is has_worst


@pytest.mark.parametrize("theme", pictures.THEMES, ids=lambda theme: theme.name)
def test_pictures_have_their_themes_background(theme: pictures.Theme) -> None:
    layout = CASES[NAME].build().layout
    ulps = {"key": np.array([0.0, np.inf, 3.0]), "score": np.array([0.0, 1.0, 1e9])}
    counts = {"out": np.ones((16, 128), np.uint8), "max_logits": np.zeros(16, int), "exp_sums": np.zeros(16, int)}
    for draw in (
        pictures.block_layout(layout),
        pictures.distances_by_column(ulps, [0, 16, 32], "tile", 1),
        pictures.differing_bits({0: counts, 3: counts}),
    ):
        drawn = draw(theme)
        assert drawn.startswith(PNG) and drawn == draw(theme)
        width, height = (int.from_bytes(drawn[at : at + 4]) for at in (16, 20))
        assert width > 800 and height > 200


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as refused:
        main(["check", NAME, "--report", str(tmp_path / "report")])
    assert refused.value.code == 2
    assert "pip install 'tqgate[report]'" in capsys.readouterr().err.splitlines()[-1]
    assert not re.search("report", " ".join(path.name for path in tmp_path.iterdir()))


def test_a_report_that_cannot_be_written_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["check", NAME, "--report", "/dev/null/report"])
    assert refused.value.code == 2
    assert "--report: " in capsys.readouterr().err


def test_failures_come_first_and_the_rest_can_be_unfolded(tmp_path: Path) -> None:
    good = Verdict("good", 1, 1, 32, 0, None, 0, 0.0, 0.1, "emulator", "cdna3@1")
    verdicts = [replace(good, name=f"good_{number}") for number in range(page.MOST_VERDICTS + 7)]
    bad = replace(good, name="bad", bits_differing=32, error="memory fault at <s0>", notes=("replay it: so",))
    unsound = replace(good, name="unsound_one", findings=("race: line 12",))
    path = page.write_page(tmp_path, [*verdicts, unsound, bad], [])
    shown, _, rest = parsed(path).text.partition("9 more")
    assert 0 < shown.index("bad") < shown.index("good_0")
    assert "The sanitizer found" in rest and "race: line 12" in rest
    assert "good_12" not in shown and "good_12" in rest and "good_18" in rest
    assert ("href", "#bad") in parsed(path).attributes and ("id", "bad") in parsed(path).attributes
    assert "The kernel stopped" in rest and "memory fault at <s0>" in rest and "replay it: so" in rest


@pytest.mark.parametrize("value, short", [(1, "1"), (100, "100"), (1e4, "1e4"), (1e9, "1e9"), (1e10, "1e10")])
def test_large_ticks_are_short(value: float, short: str) -> None:
    assert pictures._short(value) == short
