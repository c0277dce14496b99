"""How a decode is launched: what the kernel is specialised on, how a sequence is split, which arguments are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Variant:
    """What one binary of the kernel is specialised on."""

    query_group_size: int
    kv_block_size: int
    hw_v_transpose: bool

    @property
    def name(self) -> str:
        """Short name, e.g. `qg8_bs16_hwtr`."""
        path = "hwtr" if self.hw_v_transpose else "swtr"
        return f"qg{self.query_group_size}_bs{self.kv_block_size}_{path}"


class KernelArgument(NamedTuple):
    """One argument of the kernel: its name and its kind, `pointer` (to device memory), `i32` or `f32`."""

    name: str
    kind: str


KERNEL_ARGUMENTS = (
    KernelArgument("out", "pointer"),
    KernelArgument("exp_sums", "pointer"),
    KernelArgument("max_logits", "pointer"),
    KernelArgument("query", "pointer"),
    KernelArgument("kv_cache", "pointer"),
    KernelArgument("centroids", "pointer"),
    KernelArgument("block_tables", "pointer"),
    KernelArgument("seq_lens", "pointer"),
    KernelArgument("num_kv_heads", "i32"),
    KernelArgument("num_partitions", "i32"),
    KernelArgument("tile_groups_per_partition", "i32"),
    KernelArgument("max_blocks_per_seq", "i32"),
    KernelArgument("softmax_scale", "f32"),
)
