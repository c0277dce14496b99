"""Faults in the kernel's source, `tqkernel/decode.py`.

Each names a kind of case of `tqkernel.cases`, or a fixture, on which the compiled mutant must differ from the
oracle or fault.
"""

from __future__ import annotations

from .fault import Fault

HWTR, SWTR = "qg8_bs16_hwtr", "qg8_bs16_swtr"
BLOCK32, GROUP16 = "qg8_bs32_hwtr", "qg16_bs16_hwtr"


def _fault(name: str, old: str, new: str, killer: str, variant: str = HWTR) -> Fault:
    return Fault(name, old, new, killer, variant)


def _equivalent(name: str, old: str, new: str, reason: str, variant: str = HWTR) -> Fault:
    return Fault(name, old, new, "", variant, reason)


def _truncated(value: str) -> str:
    """bfloat16 by cutting the low half of a float32 off, instead of rounding to nearest even."""
    return f"({value}.bitcast(fx.Int32) & -65536).bitcast(fx.Float32).to(fx.BFloat16)"


_WORDS = "byte_offset + chunk * (QK_CHUNK // 2)"
_ENTRY = "entry = ((word >> (8 * byte)) & 0xFF) * 8"
_KEY = "chunks.append((_f32(centroids) * norm).to(fx.BFloat16))"
_VALUE = "chunks.append((nibbles * scale + zero).to(fx.BFloat16))"
_SELECT = "return [(live_tokens > token).select(scaled[token], dead) for token in range(4)]"
_CHANGE = "change = (state.maximum == nothing).select(fx.Float32(0.0), state.maximum - maximum)"
_REFERENCE = "reference = (maximum == nothing).select(fx.Float32(0.0), maximum)"
_PROBABILITIES = "probabilities = [_exp2((value - reference) * LOG2E) for value in scores]"
_GROUP_SUM = "group_sum = functools.reduce(lambda total, value: total + value, probabilities)"
_WEIGHTS = "weights = _f32(probabilities).to(fx.BFloat16).bitcast(fx.Int16)"
_INVERSE = "inverse = one / (total > 0.0).select(total, one)"
_OUTPUT = "return [(part * inverse).to(fx.BFloat16) for part in output]"
_TRIPS = "trips = fx.max(fx.min(groups_needed, tile_groups_per_partition), 0)"
_LIVE = "live_tokens = seq_len - (first_block + step) * kv_block_size - tile * TILE_TOKENS"
_NEIGHBOURS = """    neighbours = combine(*_exchange(value, rocdl.permlane16_swap))
    return combine(*_exchange(neighbours, rocdl.permlane32_swap))
"""
_BARRIERS = """                fx.gpu.barrier()
                write_values(values, value, lane, hw_v_transpose)
                fx.gpu.barrier()
"""
_ONE_WAVE = (
    "A workgroup is one wave, whose LDS accesses the hardware performs in order: LLVM turns the barrier into "
    "nothing, or into a wait that nothing needs."
)

KERNEL_FAULTS = (
    # Where things lie
    _fault("key_nibble_order", "[low[2 * half], high, low[2 * half + 1], high]",
           "[high, low[2 * half], high, low[2 * half + 1]]", "minilm_tg1"),
    _fault("key_low_nibble_of_pairs", "_load(centroids, (lane_index & 3) * 16,",
           "_load(centroids, (lane_index & 1) * 16,", "minilm_tg1"),
    _fault("key_high_nibble_of_pairs", "(lane_index >> 2) * 4, fx.Float32)",
           "(lane_index & 15) * 4, fx.Float32)", "minilm_tg1"),
    _fault("value_nibble_order", "[0, 4, 1, 5, 2, 6, 3, 7]", "[4, 0, 5, 1, 6, 2, 7, 3]", "minilm_tg1"),
    _fault("value_nibbles_by_halves", "[0, 4, 1, 5, 2, 6, 3, 7]", "[0, 1, 2, 3, 4, 5, 6, 7]", "minilm_tg1"),
    _fault("value_nibble_mask", "0x0F0F0F0F", "0x0F0F0F07", "minilm_tg1"),
    _fault("words_of_half_the_dims", _WORDS, "byte_offset + chunk * (QK_CHUNK // 4)", "minilm_tg1"),
    _fault("key_bytes_reversed", _ENTRY, "entry = ((word >> (24 - 8 * byte)) & 0xFF) * 8", "minilm_tg1"),
    _fault("key_byte_mask", _ENTRY, "entry = ((word >> (8 * byte)) & 0x7F) * 8", "minilm_tg1"),
    _fault("value_is_the_key", "value_words = load_words(block, data + PACKED_BYTES)",
           "value_words = load_words(block, data)", "minilm_tg1"),
    _fault("scale_and_zero_in_one", "MetadataField.VALUE_ZERO * field_bytes",
           "MetadataField.VALUE_SCALE * field_bytes", "minilm_tg1"),
    _fault("norm_is_the_scale", "MetadataField.KEY_NORM * field_bytes",
           "MetadataField.VALUE_SCALE * field_bytes", "minilm_tg1"),
    _fault("metadata_without_the_head", "head_metadata = data_bytes + head * head_metadata_bytes",
           "head_metadata = data_bytes", "minilm_tg1"),
    _fault("metadata_interleaved", "head_metadata + slot * METADATA_BYTES)",
           "head_metadata + slot * (METADATA_BYTES * 3))", "minilm_tg1"),
    _fault("metadata_of_half_a_block", "field_bytes = kv_block_size * METADATA_BYTES",
           "field_bytes = 16 * METADATA_BYTES", "minilm_tg1", BLOCK32),
    _fault("data_without_the_head", "head_data = head * DATA_BYTES + lane.group * 4",
           "head_data = lane.group * 4", "minilm_tg1"),
    _fault("heads_before_slots", "slot * (num_kv_heads * DATA_BYTES) + head_data",
           "slot * DATA_BYTES + head_data + head * ((kv_block_size - 1) * DATA_BYTES)", "minilm_tg1"),
    _fault("block_without_metadata", "block_bytes = data_bytes + num_kv_heads * head_metadata_bytes",
           "block_bytes = data_bytes", "minilm_tg1"),
    _fault("second_half_of_block_not_read", "slot = lane.row + tile * TILE_TOKENS", "slot = lane.row",
           "minilm_tg1", BLOCK32),
    _fault("block_base_in_32_bits", "fx.Int64(block_id) * fx.Int64(block_bytes)",
           "fx.Int64(block_id * block_bytes)", "far"),
    _fault("blocks_unsigned_32_bits", "fx.Int64(block_id) * fx.Int64(block_bytes)",
           "_unsigned(block_id * block_bytes)", "far"),
    _equivalent("offset_in_block_signed", "return fx.Int64(fx.Uint32(offset))", "return fx.Int64(offset)",
                "An offset within a block is below its size, BS * Hk * 134 bytes, which no count of heads "
                "that fits a block of 2 GiB brings to 2**31: signed and unsigned widening agree."),
    # Block tables, sequences, heads, partitions
    _fault("table_not_followed", "block_id = _load(table, fx.Int64(entry) * 4, fx.Int32)", "block_id = entry",
           "shuffled"),
    _fault("table_of_the_first_sequence",
           "table = block_tables + fx.Int64(sequence) * fx.Int64(max_blocks_per_seq) * 4",
           "table = block_tables", "shuffled"),
    _fault("table_width_off_by_one",
           "table = block_tables + fx.Int64(sequence) * fx.Int64(max_blocks_per_seq) * 4",
           "table = block_tables + fx.Int64(sequence) * fx.Int64(max_blocks_per_seq - 1) * 4", "shuffled"),
    _fault("redirect_dropped", "entry = fx.min(first_block + step, last_block)", "entry = first_block + step",
           "ragged"),
    _fault("redirect_to_the_next_block", "last_block = (seq_len - 1) >> block_shift",
           "last_block = seq_len >> block_shift", "ragged"),
    _fault("redirect_to_the_first_block", "entry = fx.min(first_block + step, last_block)",
           "entry = (first_block + step > last_block).select(last_block & 0, first_block + step + 1)",
           "minilm_tg1"),
    _fault("length_of_the_first_sequence", "_load(seq_lens, fx.Int64(sequence) * 4, fx.Int32)",
           "_load(seq_lens, fx.Int64(sequence) * 0, fx.Int32)", "ragged"),
    _fault("heads_outside_sequences", "sequence_head = fx.Int64(sequence) * num_kv_heads + head",
           "sequence_head = fx.Int64(head) * num_kv_heads + sequence", "shuffled"),
    _fault("partition_base_off_by_one_group",
           "partition_start = partition * tile_groups_per_partition * GROUP_TOKENS",
           "partition_start = (partition * tile_groups_per_partition + 1) * GROUP_TOKENS", "minilm_tg1"),
    _fault("partition_base_without_groups",
           "partition_start = partition * tile_groups_per_partition * GROUP_TOKENS",
           "partition_start = partition * GROUP_TOKENS", "minilm_tg2"),
    _fault("trip_count_floor", "groups_needed = ((seq_len - partition_start - 1) >> GROUP_SHIFT) + 1",
           "groups_needed = (seq_len - partition_start) >> GROUP_SHIFT", "ragged"),
    _fault("trip_count_one_more", "groups_needed = ((seq_len - partition_start - 1) >> GROUP_SHIFT) + 1",
           "groups_needed = ((seq_len - partition_start) >> GROUP_SHIFT) + 1", "ragged"),
    _fault("trips_past_the_partition", _TRIPS, "trips = fx.max(groups_needed, 0)", "minilm_tg1"),
    _fault("trips_of_one_group", _TRIPS, "trips = fx.max(fx.min(groups_needed, 1), 0)", "minilm_tg2"),
    _equivalent("trips_below_zero", _TRIPS, "trips = fx.min(groups_needed, tile_groups_per_partition)",
                "A loop from 0 to a negative bound, compared signed, runs as often as one to 0: never."),
    _fault("blocks_of_a_group", "blocks_per_group = TILES_PER_GROUP // tiles_per_block",
           "blocks_per_group = TILES_PER_GROUP", "minilm_tg1", BLOCK32),
    _fault("one_tile_too_few", "for step in range(0, trips * blocks_per_group, 1):",
           "for step in range(0, trips * blocks_per_group - 1, 1):", "minilm_tg1"),
    # Query and scores
    _fault("query_groups_swapped", "(chunk * QK_CHUNK * BF16_BYTES) + lane.group * 16",
           "(chunk * QK_CHUNK * BF16_BYTES) + (lane.group ^ 1) * 16", "minilm_tg1"),
    _fault("query_rows_in_pairs", "query_row = lane.row & (query_group_size - 1)",
           "query_row = lane.row >> 1", "minilm_tg1"),
    _fault("query_rows_past_the_head", "query_row = lane.row & (query_group_size - 1)", "query_row = lane.row",
           "minilm_tg1"),
    _fault("last_dims_not_scored", "in zip(key, query, strict=True):", "in zip(key[:-1], query[:-1], strict=True):",
           "minilm_tg1"),
    _fault("chunks_scored_in_reverse", "in zip(key, query, strict=True):",
           "in zip(key[::-1], query[::-1], strict=True):", "minilm_tg1"),
    _fault("matrix_operands_swapped", "[key_chunk, query_chunk, products, 0, 0, 0]",
           "[query_chunk, key_chunk, products, 0, 0, 0]", "minilm_tg1"),
    _fault("norm_after_rounding", _KEY,
           "chunks.append((_f32(centroids).to(fx.BFloat16).to(fx.Float32) * norm).to(fx.BFloat16))",
           "minilm_tg1"),
    _fault("norm_dropped", _KEY, "chunks.append(_f32(centroids).to(fx.BFloat16))", "minilm_tg1"),
    _fault("key_truncated", _KEY, f"chunks.append({_truncated('(_f32(centroids) * norm)')})", "minilm_tg1"),
    _fault("scale_dropped", "scaled = products * softmax_scale", "scaled = products", "minilm_tg1"),
    _fault("scale_after_the_mask", _SELECT,
           "return [(live_tokens > token).select(products[token], dead) * softmax_scale for token in range(4)]",
           "negative_scale"),
    _fault("mask_at_most", _SELECT, _SELECT.replace("live_tokens > token", "live_tokens >= token"), "ragged"),
    _fault("mask_dropped", _SELECT, "return [scaled[token] for token in range(4)]", "ragged"),
    _fault("mask_without_the_group", "softmax_scale, live_tokens - lane.group * 4)",
           "softmax_scale, live_tokens)", "ragged"),
    _fault("mask_without_the_second_half", _LIVE, _LIVE.removesuffix(" - tile * TILE_TOKENS"), "ragged", BLOCK32),
    _fault("mask_without_the_partition", _LIVE, _LIVE.replace("(first_block + step)", "step"), "ragged"),
    # Softmax
    _fault("maximum_within_the_group", "_across_groups(tile_maximum, fx.maximumf))", "tile_maximum)",
           "minilm_tg1"),
    _fault("maximum_of_three_tokens", "tile_maximum = functools.reduce(fx.maximumf, scores)",
           "tile_maximum = functools.reduce(fx.maximumf, scores[:3])", "minilm_tg1"),
    _fault("maximum_ignores_nan", "tile_maximum = functools.reduce(fx.maximumf, scores)",
           "tile_maximum = functools.reduce(fx.maxnumf, scores)", "hostile"),
    _fault("maximum_forgets_earlier_tiles", "maximum = fx.maximumf(state.maximum, _across_groups(",
           "maximum = fx.maximumf(fx.Float32(float('-inf')), _across_groups(", "minilm_tg1"),
    _fault("across_neighbours_only", _NEIGHBOURS,
           "    return combine(*_exchange(value, rocdl.permlane16_swap))\n", "minilm_tg1"),
    _fault("sum_of_groups_in_another_order", _NEIGHBOURS,
           _NEIGHBOURS.replace("permlane16", "permlane").replace("permlane32", "permlane16")
           .replace("permlane_", "permlane32_"), "minilm_tg1"),
    _fault("sum_within_the_group", "total = _across_groups(group_sum, lambda left, right: left + right)",
           "total = group_sum", "minilm_tg1"),
    _fault("sum_pairwise", _GROUP_SUM,
           "group_sum = (probabilities[0] + probabilities[1]) + (probabilities[2] + probabilities[3])",
           "minilm_tg1"),
    _fault("sum_from_the_last_token", _GROUP_SUM, _GROUP_SUM.replace("probabilities)", "probabilities[::-1])"),
           "minilm_tg1"),
    _fault("sum_of_rounded_probabilities", _GROUP_SUM,
           _GROUP_SUM.replace("probabilities)", "[it.to(fx.BFloat16).to(fx.Float32) for it in probabilities])"),
           "minilm_tg1"),
    _fault("sum_not_rescaled", "state.sum * rescale + total)", "state.sum + total)", "minilm_tg1"),
    _fault("sum_rescaled_after", "state.sum * rescale + total)", "(state.sum + total) * rescale)", "minilm_tg1"),
    _fault("sum_fused", "state.sum * rescale + total)", "fx.fma(state.sum, rescale, total))", "minilm_tg1"),
    _fault("log2e_dropped_from_the_rescale", "rescale = _exp2(change * LOG2E)", "rescale = _exp2(change)",
           "minilm_tg1"),
    _fault("log2e_dropped_from_probabilities", _PROBABILITIES,
           "probabilities = [_exp2(value - reference) for value in scores]", "minilm_tg1"),
    _fault("log2e_off_by_an_ulp", "LOG2E = 1.4426950408889634", "LOG2E = 1.44269514", "minilm_tg1"),
    _fault("log2e_distributed", _PROBABILITIES,
           "probabilities = [_exp2(value * LOG2E - reference * LOG2E) for value in scores]", "minilm_tg1"),
    _fault("log2e_fused", _PROBABILITIES,
           "probabilities = [_exp2(fx.fma(value, fx.Float32(LOG2E), reference * -LOG2E)) for value in scores]",
           "minilm_tg1"),
    _fault("change_negated", _CHANGE, _CHANGE.replace("state.maximum - maximum", "maximum - state.maximum"),
           "minilm_tg1"),
    _fault("change_from_nothing", _CHANGE, "change = state.maximum - maximum", "hostile"),
    _equivalent("change_of_nothing_is_minus_inf", _CHANGE,
                _CHANGE.replace("fx.Float32(0.0)", "fx.Float32(float('-inf'))").replace("state.", "", 1),
                "Where both maxima are -inf this rescales by 0 instead of 1, but sum and accumulator are still "
                "+0, or NaN; where only the earlier one is, -inf - M' makes it 0 as well, and they are +0."),
    _fault("reference_of_nothing", _REFERENCE, "reference = maximum", "hostile"),
    _fault("greater_than_minus_inf", _PROBABILITIES,
           "probabilities = [(maximum > nothing).select(_exp2((value - reference) * LOG2E), fx.Float32(0.0)) "
           "for value in scores]\n"
           "    rescale = (maximum > nothing).select(rescale, fx.Float32(1.0))", "nan_query"),
    _equivalent("greater_than_minus_inf_in_the_change", _CHANGE,
                "change = (state.maximum > nothing).select(state.maximum - maximum, fx.Float32(0.0))",
                "The two differ when the maximum is NaN; then every probability of the tile is NaN, and so "
                "are sum and accumulator whatever they are rescaled by."),
    _equivalent("greater_than_minus_inf_in_the_reference", _REFERENCE,
                "reference = (maximum > nothing).select(maximum, fx.Float32(0.0))",
                "The two differ when the maximum is NaN. It became so by a NaN score, whose probability "
                "exp2(NaN - 0) is NaN and reaches sum and accumulator; in later tiles the rescale is NaN."),
    # Values and the accumulator
    _fault("dead_scale_kept", "live.select(scale.to(fx.Float32), dead),", "scale.to(fx.Float32),", "dead_bytes"),
    _fault("dead_zero_kept", "live.select(zero.to(fx.Float32), dead),", "zero.to(fx.Float32),", "dead_bytes"),
    _fault("live_at_most", "live = live_tokens > lane.row", "live = live_tokens >= lane.row", "dead_bytes"),
    _fault("live_by_the_group", "live = live_tokens > lane.row", "live = live_tokens > lane.group", "ragged"),
    _equivalent("product_and_zero_fused", _VALUE,
                "chunks.append(fx.fma(nibbles, fx.Vector.filled(8, scale, fx.Float32), "
                "fx.Vector.filled(8, zero, fx.Float32)).to(fx.BFloat16))",
                "A nibble has 4 bits and an fp16 scale 11, subnormal or not, so their product is exact in "
                "float32 and rounding it changes nothing; infinities and NaN agree too."),
    _fault("zero_dropped", _VALUE, "chunks.append((nibbles * scale).to(fx.BFloat16))", "minilm_tg1"),
    _fault("zero_before_the_product", _VALUE, "chunks.append(((nibbles + zero) * scale).to(fx.BFloat16))",
           "minilm_tg1"),
    _fault("value_truncated", _VALUE, f"chunks.append({_truncated('(nibbles * scale + zero)')})", "minilm_tg1"),
    _fault("rescale_skipped_on_one_chunk", "part * rescale, 0, 0, 0]))",
           "part if part is output[3] else part * rescale, 0, 0, 0]))", "minilm_tg1"),
    _fault("weights_truncated", _WEIGHTS, f"weights = {_truncated('_f32(probabilities)')}.bitcast(fx.Int16)",
           "minilm_tg1"),
    _fault("weights_not_rounded", _WEIGHTS,
           _WEIGHTS + "\n    rest = (_f32(probabilities) - _f32(probabilities).to(fx.BFloat16).to(fx.Float32))"
           "\n    rest = rest.to(fx.BFloat16).bitcast(fx.Int16)"
           "\n    more = rocdl.mfma_f32_16x16x16bf16_1k"
           "\n    output = [fx.Vector(more(T.f32x4, [v, rest, part * rescale, 0, 0, 0])) "
           "for v, part in zip(values, output, strict=True)]"
           "\n    rescale = fx.Float32(1.0)", "minilm_tg1"),
    _fault("values_written_to_other_groups", "lane.row * VALUE_ROW_BYTES + lane.group * 16 + column",
           "lane.row * VALUE_ROW_BYTES + (lane.group ^ 2) * 16 + column", "minilm_tg1"),
    _fault("values_read_across_groups", "token = lane.group * 4 + (lane.row >> 2)",
           "token = lane.group + (lane.row >> 2) * 4", "minilm_tg1"),
    _fault("transposed_values_in_other_rows", "row = lane.group * 8 + (chunk * QK_CHUNK + index)",
           "row = (lane.group ^ 1) * 8 + (chunk * QK_CHUNK + index)", "minilm_tg1", SWTR),
    _fault("transposed_values_read_elsewhere", "offset = lane.row * TRANSPOSED_ROW_BYTES + lane.group * 8",
           "offset = lane.row * TRANSPOSED_ROW_BYTES + (lane.group ^ 1) * 8", "minilm_tg1", SWTR),
    _equivalent("value_rows_without_padding", "VALUE_ROW_BYTES = HEAD_SIZE * BF16_BYTES + 16",
                "VALUE_ROW_BYTES = HEAD_SIZE * BF16_BYTES",
                "The padding spreads rows over LDS banks: it decides how fast, not what."),
    _equivalent("transposed_rows_without_padding", "TRANSPOSED_ROW_BYTES = TILE_TOKENS * BF16_BYTES + 8",
                "TRANSPOSED_ROW_BYTES = TILE_TOKENS * BF16_BYTES",
                "The padding spreads rows over LDS banks: it decides how fast, not what.", SWTR),
    _equivalent("barrier_after_the_table_dropped", "        fx.gpu.barrier()\n\n        maximum =",
                "        maximum =", _ONE_WAVE),
    _equivalent("barrier_before_values_dropped", _BARRIERS, _BARRIERS.split("\n", 1)[1], _ONE_WAVE),
    _equivalent("barrier_after_values_dropped", _BARRIERS, _BARRIERS.rsplit("fx.gpu", 1)[0] + "pass\n", _ONE_WAVE),
    # Outputs
    _fault("sum_guard_dropped", _INVERSE, "inverse = one / total", "ragged"),
    _fault("sum_guard_at_least", _INVERSE, _INVERSE.replace("total > 0.0", "total >= 0.0"), "ragged"),
    _equivalent("sum_guard_lets_nan_through", _INVERSE, "inverse = one / (total == 0.0).select(one, total)",
                "A sum is never negative, so the two differ for NaN. A NaN sum comes from a NaN probability "
                "or rescale, either of which makes every accumulator of the row NaN: the output is NaN."),
    _fault("inverse_approximate", _INVERSE,
           "inverse = fx.Float32(rocdl.rcp(T.f32, (total > 0.0).select(total, one).ir_value()))", "ties"),
    _fault("output_divided", _OUTPUT,
           "return [(part / (total > 0.0).select(total, one)).to(fx.BFloat16) for part in output]", "ties"),
    _fault("output_not_normalised", _OUTPUT, "return [part.to(fx.BFloat16) for part in output]", "minilm_tg1"),
    _fault("output_truncated", _OUTPUT, f"return [{_truncated('(part * inverse)')} for part in output]",
           "minilm_tg1"),
    _fault("row_gate_dropped", "if lane.row < query_group_size:", "if lane.row < 16:", "minilm_tg1"),
    _fault("sum_gate_by_row", "if lane_index < query_group_size:", "if lane.row < query_group_size:",
           "minilm_tg1"),
    _fault("half_of_the_rows", "if lane.row < query_group_size:", "if lane.row < 8:", "minilm_tg1", GROUP16),
    _fault("last_dims_not_written", "in enumerate(normalise(output, total)):",
           "in enumerate(normalise(output[:-1], total)):", "minilm_tg1"),
    _fault("dims_written_by_group", "lane.group * 8 + chunk * 32, part)", "lane.group * 64 + chunk * 8, part)",
           "minilm_tg1"),
    _fault("partition_not_in_the_row",
           "row_index = (sequence_head * num_partitions + partition) * query_group_size",
           "row_index = sequence_head * num_partitions * query_group_size", "minilm_tg1"),
    _fault("partitions_outside_heads",
           "row_index = (sequence_head * num_partitions + partition) * query_group_size",
           "row_index = (fx.Int64(partition) * num_kv_heads + sequence_head) * query_group_size", "minilm_tg1"),
    _fault("sum_is_the_maximum", "_store(exp_sums + row_index * 4, lane_index * 4, total)",
           "_store(exp_sums + row_index * 4, lane_index * 4, maximum)", "minilm_tg1"),
    _fault("maximum_in_powers_of_two", "_store(max_logits + row_index * 4, lane_index * 4, maximum)",
           "_store(max_logits + row_index * 4, lane_index * 4, maximum * LOG2E)", "minilm_tg1"),
    _fault("maximum_starts_finite", "maximum = fx.Float32(float(\"-inf\"))", "maximum = fx.Float32(-3.0e38)",
           "ragged"),
    _fault("sum_starts_tiny", "total = fx.Float32(0.0)", "total = fx.Float32(1.0e-30)", "ragged"),
    _fault("accumulator_starts_tiny", "fx.Vector.filled(4, 0.0, fx.Float32) for _",
           "fx.Vector.filled(4, 2.0**-149, fx.Float32) for _", "ties"),
)  # fmt: skip
