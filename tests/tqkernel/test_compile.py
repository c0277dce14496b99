from __future__ import annotations

import os
import re
import threading

import pytest

from tqkernel import compile as compiling
from tqkernel.plan import KERNEL_ARGUMENTS, VARIANTS, Variant

VARIANT = Variant(8, 16, True)
FUSED = re.compile(r"\t(v_(pk_)?fmac?|v_(pk_)?mad|v_fma_mix)\w*_f32|\tv_(dot|pk_fma)")


def instructions(listing: str) -> list[str]:
    """The instruction lines of a listing."""
    code = listing[: listing.index(".Lfunc_end0:")]
    return [line for line in code.splitlines() if re.match(r"\t[a-z]", line)]


def mnemonics(listing: str) -> list[str]:
    return [line.split()[0] for line in instructions(listing)]


def directive(listing: str, name: str) -> int:
    return int(re.search(rf"\.amdhsa_{name} (\d+)", listing)[1])


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def compiled(request) -> tuple[Variant, str]:
    return request.param, compiling.compile_listing(request.param)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TQGATE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_variants_are_the_eight():
    assert len(set(VARIANTS)) == len({variant.name for variant in VARIANTS}) == 8


def test_listing_is_a_gfx950_kernel(compiled):
    _, listing = compiled
    assert listing.startswith('\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"\n')
    assert mnemonics(listing)[-1] == "s_endpgm"


def test_kernel_arguments_are_laid_out_as_listed(compiled):
    _, listing = compiled
    arguments = re.findall(r"\.offset: +(\d+)\n +\.size: +(\d+)\n +\.value_kind: +(\w+)", listing)
    size = {"pointer": 8, "i32": 4, "f32": 4}
    kind = {"pointer": "global_buffer", "i32": "by_value", "f32": "by_value"}
    expected, offset = [], 0
    for argument in KERNEL_ARGUMENTS:
        expected.append((str(offset), str(size[argument.kind]), kind[argument.kind]))
        offset += size[argument.kind]
    assert arguments == expected


def test_transpose_instruction_follows_the_variant(compiled):
    variant, listing = compiled
    tiles = variant.kv_block_size // 16
    transposing = mnemonics(listing).count("ds_read_b64_tr_b16")
    narrow_writes = sum(name.startswith("ds_write_b16") for name in mnemonics(listing))
    assert (transposing, narrow_writes) == ((8 * tiles, 0) if variant.hw_v_transpose else (0, 32 * tiles))


def test_nothing_is_contracted(compiled):
    """The only fused operations are those of the correctly rounded division."""
    _, listing = compiled
    lines = instructions(listing)
    division = [
        index for index, line in enumerate(lines) if line.startswith(("\tv_div_scale", "\tv_div_fix"))
    ]
    fused = [index for index, line in enumerate(lines) if FUSED.match(line)]
    assert len(fused) == 5
    assert division[0] < fused[0] and fused[-1] < division[-1]
    assert len(division) == 3


def test_subnormals_are_kept_and_rounding_is_to_nearest(compiled):
    _, listing = compiled
    assert directive(listing, "float_denorm_mode_32") == directive(listing, "float_denorm_mode_16_64") == 3
    assert directive(listing, "float_round_mode_32") == directive(listing, "float_round_mode_16_64") == 0


def test_values_are_written_before_other_lanes_read_them(compiled):
    """Between a tile's last value write and its first value read, the wave waits for LDS."""
    variant, listing = compiled
    lines = instructions(listing)
    write = "\tds_write_b128" if variant.hw_v_transpose else "\tds_write_b16"
    read = "\tds_read_b64_tr_b16" if variant.hw_v_transpose else "\tds_read2"
    events = "".join(
        "w" if line.startswith(write) else "r" if line.startswith(read) else "|"
        for line in lines
        if line.startswith((write, read)) or re.match(r"\ts_waitcnt .*lgkmcnt\(0\)", line)
    )
    assert re.search("w[^|]*r", events) is None
    assert re.search("r[^|]*w", events) is None


def test_one_wave_fits_the_registers_and_the_lds(compiled):
    _, listing = compiled
    assert directive(listing, "next_free_vgpr") <= 128
    assert directive(listing, "group_segment_fixed_size") <= 8320
    assert ".vgpr_spill_count: 0" in listing
    assert directive(listing, "private_segment_fixed_size") == 0


def test_second_compile_reads_the_cache(cache, monkeypatch):
    first = compiling.compile_listing(VARIANT)
    assert [path.suffix for path in cache.iterdir()] == [".s"]
    monkeypatch.setattr(compiling, "compile_launcher", lambda *_, **__: pytest.fail("compiled again"))
    assert compiling.compile_listing(VARIANT) == first


@pytest.mark.parametrize("change", ["kernel", "flydsl", "variant", "debug_locations"])
def test_cache_misses_when_anything_changes(cache, monkeypatch, change, tmp_path):
    key = compiling._cache_key(VARIANT, False)
    variant, debug_locations = VARIANT, False
    if change == "kernel":
        edited = tmp_path / "decode.py"
        edited.write_text(compiling._KERNEL_SOURCES[1].read_text() + "# edited\n")
        assert compiling._KERNEL_SOURCES[1].name == "decode.py"
        sources = (compiling._KERNEL_SOURCES[0], edited, *compiling._KERNEL_SOURCES[2:])
        monkeypatch.setattr(compiling, "_KERNEL_SOURCES", sources)
    elif change == "flydsl":
        monkeypatch.setattr(compiling.importlib.metadata, "version", lambda name: "0.0")
    elif change == "variant":
        variant = Variant(8, 16, False)
    else:
        debug_locations = True
    assert compiling._cache_key(variant, debug_locations) != key


def test_failed_write_leaves_no_file(cache, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(compiling.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        compiling._write_atomically(cache / "listing.s", "text")
    assert list(cache.iterdir()) == []


def test_environment_is_put_back(cache, monkeypatch):
    monkeypatch.setenv("ARCH", "gfx942")
    monkeypatch.delenv("COMPILE_ONLY", raising=False)
    before = dict(os.environ)
    compiling.compile_listing(VARIANT)
    assert dict(os.environ) == before


def test_environment_is_put_back_after_an_error(monkeypatch):
    before = dict(os.environ)
    with pytest.raises(TypeError, match="launcher: expected a @flyc.jit function, got function"):
        compiling.compile_launcher(lambda: None)
    assert dict(os.environ) == before


def test_flydsl_is_told_the_architecture(monkeypatch):
    monkeypatch.setenv("FLYDSL_GPU_ARCH", "gfx1201")
    with compiling._listing_environment(False):
        assert os.environ["ARCH"] == os.environ["FLYDSL_GPU_ARCH"] == "gfx950"


def test_threads_take_turns_with_the_environment():
    entered = threading.Event()

    def enter():
        with compiling._listing_environment(False):
            entered.set()

    thread = threading.Thread(target=enter)
    with compiling._listing_environment(False):
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(10)
    thread.join()


def test_debug_locations_change_no_instruction(cache):
    plain = compiling.compile_listing(VARIANT)
    located = compiling.compile_listing(VARIANT, debug_locations=True)
    assert instructions(located) == instructions(plain)
    assert '"decode.py"' in located and "\t.loc\t" in located
    assert "\t.loc\t" not in plain


@pytest.mark.parametrize(
    "escaped, text",
    [
        (r"\09mov\0A", "\tmov\n"),
        (r"\22quoted\22", '"quoted"'),
        (r"back\\slash", "back\\slash"),
        (r"\\0A", r"\0A"),
        (r"\C3\A9", "é"),
        (r"a\nb\tc\"", 'a\nb\tc"'),
    ],
)
def test_unescape(escaped, text):
    assert compiling._unescape(escaped) == text


def test_module_without_a_listing_is_refused():
    with pytest.raises(ValueError, match="expected one assembly listing, found 0"):
        compiling.listing_in_module("module {}")


def test_vector_add():
    from . import sample_kernels

    pointers = [float_pointer() for _ in range(3)]
    listing = compiling.compile_builder(sample_kernels.build_vector_add, *pointers, 100, block_size=128)
    assert "v_add_f32_e32" in mnemonics(listing)
    assert ".max_flat_workgroup_size: 128" in listing


def test_softmax():
    from . import sample_kernels

    listing = compiling.compile_builder(sample_kernels.build_softmax, float_pointer(), float_pointer(), 3)
    assert "v_exp_f32_e32" in mnemonics(listing)


def test_gemm():
    from flydsl.expr import BFloat16

    from . import sample_kernels

    a, b = compiling.pointer(BFloat16), compiling.pointer(BFloat16)
    listing = compiling.compile_builder(sample_kernels.build_gemm, a, b, float_pointer(), k_tiles=2)
    assert "v_mfma_f32_16x16x16_bf16" in mnemonics(listing)


def test_device_library_calls_are_explained():
    from . import sample_kernels

    with pytest.raises(RuntimeError, match='fastmath="fast"'):
        compiling.compile_builder(
            sample_kernels.build_softmax, float_pointer(), float_pointer(), 3, fastmath=None
        )


def host_arrays(num_seqs: int = 1, max_blocks_per_seq: int = 16):
    torch = pytest.importorskip("torch")
    return {
        "out": torch.full((num_seqs, 1, 2, 8, 128), 7.0, dtype=torch.bfloat16),
        "exp_sums": torch.full((num_seqs, 1, 2, 8), 7.0),
        "max_logits": torch.full((num_seqs, 1, 2, 8), 7.0),
        "query": torch.zeros(num_seqs, 8, 128, dtype=torch.bfloat16),
        "kv_cache": torch.zeros(1, 16 * 134, dtype=torch.uint8),
        "centroids": torch.zeros(16),
        "block_tables": torch.zeros(num_seqs, max_blocks_per_seq, dtype=torch.int32),
        "seq_lens": torch.full((num_seqs,), 5, dtype=torch.int32),
    }


def decode_module(**parameters):
    from tqkernel.decode import build_tq_decode_module

    defaults = dict(num_seqs=1, num_kv_heads=1, num_partitions=2, max_blocks_per_seq=16)
    return build_tq_decode_module(**(defaults | parameters))


def test_module_keeps_what_it_was_built_for():
    module = decode_module(
        query_group_size=16, kv_block_size=32, use_hw_v_transpose=True, tile_groups_per_partition=4
    )
    assert module.variant == Variant(16, 32, True)
    assert module.tile_groups_per_partition == 4
    assert module.softmax_scale == 1 / 128**0.5
    assert decode_module(softmax_scale=0.0).softmax_scale == 0.0
    assert decode_module(softmax_scale=0.0).launcher is decode_module(num_kv_heads=4).launcher


def test_module_refuses_a_size_the_kernel_is_not_written_for():
    with pytest.raises(ValueError, match="query_group_size: expected one of 8, 16, got 4"):
        decode_module(query_group_size=4)


@pytest.mark.parametrize(
    "parameters, change, message",
    [
        ({}, {}, "^query: expected a tensor on a GPU"),
        ({}, {"seq_lens": -1}, r"^seq_lens\[0\]: expected at least 0 tokens, got -1"),
        ({}, {"block_tables": 1}, r"^block_tables\[0, 0\]: expected 0 to 0, got 1"),
        ({"num_kv_heads": 2}, {}, r"^out: expected shape \(1, 2, 2, 8, 128\)"),
        ({"softmax_scale": float("nan")}, {}, "^softmax_scale: expected a finite float32"),
    ],
)
def test_module_checks_before_it_launches(monkeypatch, parameters, change, message):
    from tqkernel import decode

    monkeypatch.setattr(decode, "_compiled", lambda variant: pytest.fail("launched"))
    arrays = host_arrays()
    for name, value in change.items():
        arrays[name].fill_(value)
    with pytest.raises(ValueError, match=message):
        decode_module(**parameters)(**arrays)
    assert all(bool((arrays[name] == 7).all()) for name in ("out", "exp_sums", "max_logits"))


def float_pointer():
    from flydsl.expr import Float32

    return compiling.pointer(Float32)
