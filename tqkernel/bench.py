"""`tqgate bench`: what speed and memory claims rest on, measured side by side in one run.

Absolute times depend on the machine and on what else it does; the ratios in one report do not, or much less.
Each figure is the fastest of a few repetitions.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tqkernel.backends.emulator import EmulatorBackend
from tqkernel.compile import compile_listing
from tqkernel.gate import oracle, run_case
from tqkernel.gfx950 import Memory, launch, parse_listing
from tqkernel.plan import Variant, plan_partitions
from tqkernel.runner import STANDARD_OUTPUT, require_writable
from tqref import DEFAULT_PROFILE, Case
from tqref.layout import HEAD_SIZE, TILE_TOKENS

VARIANT = Variant(query_group_size=8, kv_block_size=16, hw_v_transpose=True)
REPETITIONS = 5


def fastest(function: Callable[[], object]) -> float:
    """Seconds of the fastest of `REPETITIONS` calls, after one that does not count."""
    function()
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def random_case(
    tokens: int, heads: int, partitions: int, tile_groups: int, variant: Variant = VARIANT
) -> Case:
    """One sequence of normally distributed keys, values and queries."""
    generator = np.random.default_rng(0)
    keys, values = generator.standard_normal((2, tokens, heads, HEAD_SIZE)).astype(np.float32)
    query = generator.standard_normal((1, heads * variant.query_group_size, HEAD_SIZE)).astype(np.float32)
    return Case.build(
        f"{tokens} tokens, {heads} heads",
        query,
        [keys],
        [values],
        kv_block_size=variant.kv_block_size,
        num_partitions=partitions,
        tile_groups_per_partition=tile_groups,
    )


def tile_waves(case: Case) -> int:
    """Tiles of 16 tokens times heads: what the kernel does with the case's tokens."""
    return int((-(-case.seq_lens.astype(np.int64) // TILE_TOKENS)).sum()) * case.num_kv_heads


# ---------------------------------------------------------------- the subjects


def emulator() -> dict[str, float]:
    """The emulator on one core beside the oracle, and its matrix core beside mmasim."""
    case = random_case(tokens=4096, heads=8, partitions=16, tile_groups=1)
    plain = EmulatorBackend(threads=1)
    emulated = fastest(lambda: plain.run(case, VARIANT.hw_v_transpose, DEFAULT_PROFILE))
    modelled = fastest(lambda: oracle(case))
    report = {
        "ms_per_tile_wave": emulated * 1e3 / tile_waves(case),
        "oracle_ms_per_tile_wave": modelled * 1e3 / tile_waves(case),
        "oracle_ratio": modelled / emulated,
    }
    return report | _matrix()


_MATRIX_INSTRUCTION = "v_mfma_f32_16x16x16_bf16 v[4:7], v[8:9], v[12:13], v[4:7]"
_MATRIX_LISTING = """
kernel:
{body}
s_endpgm
.Lfunc_end0:
.amdhsa_kernel kernel
.amdhsa_user_sgpr_count 2
.amdhsa_user_sgpr_kernarg_segment_ptr 1
.end_amdhsa_kernel
"""


def _matrix(count: int = 4000) -> dict[str, float]:
    """One 16x16x16 bf16 matrix instruction, emulated, and by mmasim where that is installed."""
    setup = [f"v_cvt_f32_u32_e32 v{register}, v0" for register in range(4, 14)]
    lines = setup + [_MATRIX_INSTRUCTION] * count
    program = parse_listing(_MATRIX_LISTING.format(body="\n".join(lines)))

    def run() -> object:
        return launch(program, (1, 1, 1), (64, 1, 1), b"", Memory(), DEFAULT_PROFILE, threads=1)

    emulated = fastest(run) / count
    report = {"matrix_us": emulated * 1e6}
    try:
        # Its top level needs a C++ compiler; this module, which has the formula, does not.
        fdpa: Any = importlib.import_module("mmasim.arithmetic.fdpa")
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return report
    operation = fdpa.MMA_TR_FDPA(F=24, F2=31, rho="RNE-FP32", L_max=8)
    a, b = (torch.randn(16, 16).bfloat16() for _ in range(2))
    c = torch.zeros(16, 16)
    reference = fastest(lambda: operation(a, b, c))
    return report | {"mmasim_us": reference * 1e6, "mmasim_speedup": reference / emulated}


def gate() -> dict[str, float]:
    """A long context, 32 Ki tokens by 8 heads, through oracle, emulator and comparison, on all cores."""
    tokens = 32 * 1024
    partitions, tile_groups = plan_partitions(tokens // VARIANT.kv_block_size, VARIANT.kv_block_size, 32)
    case = random_case(tokens, 8, partitions, tile_groups)
    start = time.perf_counter()
    verdict = run_case(case, VARIANT.hw_v_transpose, EmulatorBackend())
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return {
        "seconds": seconds,
        "peak_GiB": peak,
        "tokens": tokens,
        "partitions": partitions,
        "bits_differing": verdict.bits_differing,
        "cores": os.cpu_count() or 1,
    }


def start() -> dict[str, float]:
    """Seconds from a new process to the end of a small launch: with everything cached, and with nothing."""
    compile_listing(VARIANT)
    program = (
        "from tqkernel.bench import VARIANT, random_case; "
        "from tqkernel.backends.emulator import EmulatorBackend; "
        "from tqref import DEFAULT_PROFILE; "
        "EmulatorBackend().run(random_case(16, 1, 1, 1), VARIANT.hw_v_transpose, DEFAULT_PROFILE)"
    )

    def seconds_of_process(**environment: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | environment)
        return time.perf_counter() - begin

    seconds_of_process()
    cached = min(seconds_of_process() for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds_of_process(TQGATE_CACHE_DIR=folder, NUMBA_CACHE_DIR=folder)
    return {"cached_seconds": cached, "cold_seconds": cold}


SUBJECTS: dict[str, tuple[Callable[[], dict[str, float]], str]] = {
    "emulator": (emulator, "one core of the emulator, beside the oracle and mmasim"),
    "gate": (gate, "32 Ki tokens by 8 heads from the oracle to a verdict, on all cores"),
    "start": (start, "a new process and a small launch, with and without its caches"),
}
"""What can be measured, and what that is."""

# ---------------------------------------------------------------- the command


def add_command(commands: Any) -> None:
    """Register `tqgate bench` with an argparse subparsers object."""
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory",
        description="Measure speed and memory, what is compared side by side in one run.",
        epilog="\n".join(["subjects:", *(f"  {name:<10}{text}" for name, (_, text) in SUBJECTS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", metavar="SUBJECT", choices=SUBJECTS, help="what to measure, see below")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for standard output")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    measure, _ = SUBJECTS[options.subject]
    if options.json not in (None, STANDARD_OUTPUT):
        require_writable("json", Path(options.json))
    figures = measure()
    text = json.dumps(figures, indent=1) + "\n"
    if options.json == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return 0
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.4g}")
    if options.json is not None:
        Path(options.json).write_text(text, encoding="utf-8")
    return 0
