"""The figures are there and mean what they say; how large they are is for `tqgate bench` to show."""

from __future__ import annotations

import json

import pytest

from tqkernel import bench
from tqkernel.cli import main


def test_tile_waves_counts_tiles_of_every_head() -> None:
    case = bench.random_case(tokens=33, heads=2, partitions=2, tile_groups=1)
    assert bench.tile_waves(case) == 3 * 2


def test_fastest_leaves_out_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REPETITIONS", 3)
    calls: list[int] = []
    bench.fastest(lambda: calls.append(1))
    assert len(calls) == 4


def test_emulator_figures_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPETITIONS", 1)
    assert main(["bench", "emulator", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {"ms_per_tile_wave", "oracle_ms_per_tile_wave", "mmasim_speedup"} <= figures.keys()
    assert all(value > 0 for value in figures.values())
    assert figures["mmasim_speedup"] == pytest.approx(figures["mmasim_us"] / figures["matrix_us"])


def test_an_unknown_subject_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "nothing"])
    assert stopped.value.code == 2
    assert "nothing" in capsys.readouterr().err
