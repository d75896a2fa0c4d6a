"""Types of the schedule methods; written by `python -m blockwright.schedule.stub`."""

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.handle import BlockRV, LoopRV
from blockwright.schedule.record import Primitive

class Facade:
    def _run(self, record: Primitive) -> Any: ...
    def add_unit_loop(self, block_or_loop: BlockRV | LoopRV) -> LoopRV: ...
    def annotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str, ann_val: Any) -> None: ...
    def annotate_buffer_access(
        self,
        block: BlockRV,
        buffer_index: int | str,
        buf_type: str,
        gen_new_ranges: IndexMap | Callable[..., Sequence[Any]],
    ) -> None: ...
    def blockize(self, target: LoopRV, preserve_unit_iters: bool = True) -> BlockRV: ...
    def cache_index(
        self,
        block: BlockRV,
        storage_scope: str,
        cse_thresh: int = 0,
    ) -> list[BlockRV]: ...
    def cache_inplace(
        self,
        block: BlockRV,
        read_buffer_index: int | str,
        storage_scope: str,
    ) -> list[BlockRV]: ...
    def cache_read(
        self,
        block: BlockRV,
        read_buffer_index: int | str,
        storage_scope: str,
        consumer_blocks: Sequence[BlockRV] | None = None,
    ) -> BlockRV: ...
    def cache_write(
        self,
        block: BlockRV,
        write_buffer_index: int | str,
        storage_scope: str,
        consumer_blocks: Sequence[BlockRV] | None = None,
    ) -> BlockRV: ...
    def compute_at(
        self,
        block: BlockRV,
        loop: LoopRV,
        preserve_unit_loops: bool = False,
        index: int = -1,
    ) -> None: ...
    def compute_inline(self, block: BlockRV) -> None: ...
    def decompose_padding(self, block: BlockRV, loop: LoopRV) -> BlockRV: ...
    def decompose_reduction(self, block: BlockRV, loop: LoopRV) -> BlockRV: ...
    def fuse(self, *loops: LoopRV, preserve_unit_iters: bool = True) -> LoopRV: ...
    def get_block(self, name: str) -> BlockRV: ...
    def get_child_blocks(self, block_or_loop: BlockRV | LoopRV) -> list[BlockRV]: ...
    def get_consumers(self, block: BlockRV) -> list[BlockRV]: ...
    def get_loops(self, block: BlockRV) -> list[LoopRV]: ...
    def get_output_blocks(self, scope_block: BlockRV) -> list[BlockRV]: ...
    def get_producers(self, block: BlockRV) -> list[BlockRV]: ...
    def pad_einsum(
        self,
        block: BlockRV,
        padding: Sequence[int],
        mode: str = "zero",
    ) -> list[BlockRV]: ...
    def parallel(self, loop: LoopRV) -> None: ...
    def read_at(
        self,
        loop: LoopRV,
        block: BlockRV,
        read_buffer_index: int | str,
        storage_scope: str,
    ) -> BlockRV: ...
    def reindex(self, block: BlockRV, buffer: Any) -> BlockRV: ...
    def reindex_cache_read(
        self,
        block: BlockRV,
        read_buffer_index: int | str,
        storage_scope: str,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> BlockRV: ...
    def reindex_cache_write(
        self,
        block: BlockRV,
        write_buffer_index: int | str,
        storage_scope: str,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> BlockRV: ...
    def reorder(self, *ordered_loops: LoopRV) -> None: ...
    def reverse_compute_at(
        self,
        block: BlockRV,
        loop: LoopRV,
        preserve_unit_loops: bool = False,
        index: int = -1,
    ) -> None: ...
    def reverse_compute_inline(self, block: BlockRV) -> None: ...
    def rfactor(self, loop: LoopRV, factor_axis: int) -> BlockRV: ...
    def set_axis_separator(
        self,
        block: BlockRV,
        buffer: Any,
        axis_separators: Sequence[int],
    ) -> None: ...
    def set_scope(self, block: BlockRV, buffer_index: int | str, storage_scope: str) -> None: ...
    def split(
        self,
        loop: LoopRV,
        factors: Sequence[int | ir.Expr | None],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
    ) -> list[LoopRV]: ...
    def storage_align(
        self,
        block: BlockRV,
        buffer_index: int | str,
        axis: int,
        factor: int,
        offset: int,
    ) -> None: ...
    def tensorize(
        self,
        block_or_loop: BlockRV | LoopRV,
        tensor_intrin: str,
        preserve_unit_iters: bool = True,
    ) -> None: ...
    def transform_block_layout(
        self,
        block: BlockRV,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> None: ...
    def transform_layout(
        self,
        block: BlockRV,
        buffer: Any,
        index_map: IndexMap | Callable[..., Sequence[Any]],
        pad_value: float | IndexMap | Callable[..., Any] | None = None,
        assume_injective_transform: bool = False,
    ) -> None: ...
    def unannotate(self, block_or_loop: BlockRV | LoopRV, ann_key: str) -> None: ...
    def unroll(self, loop: LoopRV) -> None: ...
    def vectorize(self, loop: LoopRV) -> None: ...
    def write_at(
        self,
        loop: LoopRV,
        block: BlockRV,
        write_buffer_index: int | str,
        storage_scope: str,
    ) -> BlockRV: ...
