"""Types of the schedule methods; written by `python -m blockwright.schedule.stub`."""

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.engine.handle import BlockRV, ExprRV, LoopRV
from blockwright.schedule.engine.record import Primitive

class Facade:
    @property
    def unsafe(self) -> Unsafe: ...
    def _run(self, record: Primitive) -> Any: ...
    def add_unit_loop(self, block_or_loop: BlockRV | LoopRV | str) -> LoopRV: ...
    def annotate(
        self,
        block_or_loop: BlockRV | LoopRV | str,
        ann_key: str,
        ann_val: Any,
    ) -> None: ...
    def annotate_buffer_access(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        buf_type: str,
        gen_new_ranges: IndexMap | Callable[..., Sequence[Any]],
    ) -> None: ...
    def atomic_update(self, block: BlockRV | str) -> None: ...
    def bind(self, loop: LoopRV, thread_axis: str) -> None: ...
    def blockize(
        self,
        target: LoopRV | Sequence[BlockRV | str],
        preserve_unit_iters: bool = True,
    ) -> BlockRV: ...
    def cache_index(
        self,
        block: BlockRV | str,
        storage_scope: str,
        cse_thresh: int | ir.Expr = 0,
    ) -> list[BlockRV]: ...
    def cache_inplace(
        self,
        block: BlockRV | str,
        read_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
    ) -> list[BlockRV]: ...
    def cache_read(
        self,
        block: BlockRV | str,
        read_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
        consumer_blocks: Sequence[BlockRV | str] | None = None,
    ) -> BlockRV: ...
    def cache_write(
        self,
        block: BlockRV | str,
        write_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
        consumer_blocks: Sequence[BlockRV | str] | None = None,
    ) -> BlockRV: ...
    def compute_at(
        self,
        block: BlockRV | str,
        loop: LoopRV,
        preserve_unit_loops: bool = False,
        index: int | ir.Expr = -1,
    ) -> None: ...
    def compute_inline(self, block: BlockRV | str) -> None: ...
    def decompose_padding(self, block: BlockRV | str, loop: LoopRV) -> BlockRV: ...
    def decompose_reduction(self, block: BlockRV | str, loop: LoopRV) -> BlockRV: ...
    def distribute(self, loop: LoopRV) -> list[LoopRV]: ...
    def double_buffer(self, block: BlockRV | str, buffer_index: ir.Buffer | int | str) -> None: ...
    def fuse(
        self,
        *loops: LoopRV,
        preserve_unit_iters: bool = True,
        name: str | None = None,
    ) -> LoopRV: ...
    def fuse_reduction_epilogue(
        self,
        reduction_block: BlockRV | str,
        epilogue_block: BlockRV | str,
    ) -> None: ...
    def get_block(self, name: str, func_name: str | None = None) -> BlockRV: ...
    def get_child_blocks(self, block_or_loop: BlockRV | LoopRV | str) -> list[BlockRV]: ...
    def get_consumers(self, block: BlockRV | str) -> list[BlockRV]: ...
    def get_loops(self, block: BlockRV | str) -> list[LoopRV]: ...
    def get_output_blocks(self, scope_block: BlockRV | str) -> list[BlockRV]: ...
    def get_producers(self, block: BlockRV | str) -> list[BlockRV]: ...
    def horizontal_fuse(self, *loops: LoopRV) -> LoopRV: ...
    def loop_partition(
        self,
        loop: LoopRV,
        factors: Sequence[int | ir.Expr | None],
        preserve_unit_iters: bool = True,
    ) -> list[LoopRV]: ...
    def merge(self, *loops: LoopRV) -> LoopRV: ...
    def merge_reduction(self, init: BlockRV | str, update: BlockRV | str) -> None: ...
    def offset_operand(
        self,
        block: BlockRV | str,
        read: ir.Buffer | int | str,
        offset: int | ir.Expr,
        dtype: str,
    ) -> list[BlockRV]: ...
    def pad_einsum(
        self,
        block: BlockRV | str,
        padding: Sequence[int | ir.Expr],
        mode: str = "zero",
    ) -> list[BlockRV]: ...
    def parallel(self, loop: LoopRV) -> None: ...
    def read_at(
        self,
        loop: LoopRV,
        block: BlockRV | str,
        read_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
    ) -> BlockRV: ...
    def reindex(
        self,
        block: BlockRV | str,
        buffer: ir.Buffer | str | tuple[str, int | str],
    ) -> BlockRV: ...
    def reindex_cache_read(
        self,
        block: BlockRV | str,
        read_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> BlockRV: ...
    def reindex_cache_write(
        self,
        block: BlockRV | str,
        write_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> BlockRV: ...
    def reorder(self, *ordered_loops: LoopRV) -> None: ...
    def reorder_block_iter_var(
        self,
        block: BlockRV | str,
        new_order: Sequence[int | ir.Expr],
    ) -> None: ...
    def reverse_compute_at(
        self,
        block: BlockRV | str,
        loop: LoopRV,
        preserve_unit_loops: bool = False,
        index: int | ir.Expr = -1,
    ) -> None: ...
    def reverse_compute_inline(self, block: BlockRV | str) -> None: ...
    def rfactor(self, loop: LoopRV, factor_axis: int | ir.Expr) -> BlockRV: ...
    def rolling_buffer(self, block: BlockRV | str, buffer_index: ir.Buffer | int | str) -> None: ...
    def sample_categorical(
        self,
        candidates: Sequence[int | ir.Expr],
        probs: Sequence[float],
        decision: int | ir.Expr | None = None,
    ) -> ExprRV: ...
    def sample_compute_location(
        self,
        block: BlockRV | str,
        decision: int | ir.Expr | None = None,
    ) -> LoopRV: ...
    def sample_imperfect_tile(
        self,
        loop: LoopRV,
        n: int | ir.Expr,
        max_innermost_factor: int | ir.Expr = 16,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]: ...
    def sample_partitioned_tile(
        self,
        loop: LoopRV,
        n: int | ir.Expr,
        partition_pos: int | ir.Expr = 0,
        innerpart_factor: int | ir.Expr = 1,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]: ...
    def sample_perfect_tile(
        self,
        loop: LoopRV,
        n: int | ir.Expr,
        max_innermost_factor: int | ir.Expr = 16,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]: ...
    def set_axis_separator(
        self,
        block: BlockRV | str,
        buffer: ir.Buffer | str | tuple[str, int | str],
        axis_separators: Sequence[int | ir.Expr],
    ) -> None: ...
    def set_scope(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        storage_scope: str,
    ) -> None: ...
    def software_pipeline(
        self,
        loop: LoopRV,
        stages: Sequence[int | ir.Expr],
        orders: Sequence[int] | None = None,
    ) -> None: ...
    def split(
        self,
        loop: LoopRV,
        factors: Sequence[int | ir.Expr | None],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[LoopRV]: ...
    def storage_align(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        axis: int | ir.Expr,
        factor: int | ir.Expr,
        offset: int | ir.Expr,
    ) -> None: ...
    def store_at(
        self,
        block: BlockRV | str,
        loop: LoopRV,
        buffer_index: ir.Buffer | int | str = 0,
    ) -> BlockRV: ...
    def tensorize(
        self,
        block_or_loop: BlockRV | LoopRV | str,
        tensor_intrin: str,
        preserve_unit_iters: bool = True,
    ) -> None: ...
    def transform_block_layout(
        self,
        block: BlockRV | str,
        index_map: IndexMap | Callable[..., Sequence[Any]],
    ) -> None: ...
    def transform_layout(
        self,
        block: BlockRV | str,
        buffer: ir.Buffer | str | tuple[str, int | str],
        index_map: IndexMap | Callable[..., Sequence[Any]],
        pad_value: float | IndexMap | Callable[..., Any] | None = None,
        assume_injective_transform: bool = False,
    ) -> None: ...
    def unannotate(self, block_or_loop: BlockRV | LoopRV | str, ann_key: str) -> None: ...
    def unroll(self, loop: LoopRV) -> None: ...
    def vectorize(self, loop: LoopRV) -> None: ...
    def widen_dtype(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        dtype: str,
    ) -> None: ...
    def write_at(
        self,
        loop: LoopRV,
        block: BlockRV | str,
        write_buffer_index: ir.Buffer | int | str,
        storage_scope: str,
    ) -> BlockRV: ...

class Unsafe:
    def __init__(self, schedule: Facade) -> None: ...
    def _run(self, record: Primitive) -> Any: ...
    def annotate_buffer_access(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        buf_type: str,
        gen_new_ranges: IndexMap | Callable[..., Sequence[Any]],
    ) -> None: ...
    def assume_independent(self, loop: LoopRV, kind: str = "parallel") -> None: ...
    def drop_predicate(self, block: BlockRV | str) -> None: ...
    def hide_buffer_access(
        self,
        block: BlockRV | str,
        buf_type: str,
        buf_index_array: Sequence[int | ir.Expr],
    ) -> None: ...
    def set_dtype(
        self,
        block: BlockRV | str,
        buffer_index: ir.Buffer | int | str,
        dtype: str,
    ) -> None: ...
