"""The primitives, one file each; this list is all that must know of a new one."""

from blockwright.schedule.primitive.add_unit_loop import AddUnitLoop
from blockwright.schedule.primitive.annotate import Annotate
from blockwright.schedule.primitive.blockize import Blockize
from blockwright.schedule.primitive.cache_read import CacheRead
from blockwright.schedule.primitive.cache_write import CacheWrite
from blockwright.schedule.primitive.compute_at import ComputeAt
from blockwright.schedule.primitive.compute_inline import ComputeInline
from blockwright.schedule.primitive.decompose_reduction import DecomposeReduction
from blockwright.schedule.primitive.double_buffer import DoubleBuffer
from blockwright.schedule.primitive.fuse import Fuse
from blockwright.schedule.primitive.get_block import GetBlock
from blockwright.schedule.primitive.get_child_blocks import GetChildBlocks
from blockwright.schedule.primitive.get_consumers import GetConsumers
from blockwright.schedule.primitive.get_loops import GetLoops
from blockwright.schedule.primitive.get_output_blocks import GetOutputBlocks
from blockwright.schedule.primitive.get_producers import GetProducers
from blockwright.schedule.primitive.horizontal_fuse import HorizontalFuse
from blockwright.schedule.primitive.loop_partition import LoopPartition
from blockwright.schedule.primitive.merge import Merge
from blockwright.schedule.primitive.pad_einsum import PadEinsum
from blockwright.schedule.primitive.parallel import Parallel
from blockwright.schedule.primitive.reindex import Reindex
from blockwright.schedule.primitive.reorder import Reorder
from blockwright.schedule.primitive.reorder_block_iter_var import ReorderBlockIterVar
from blockwright.schedule.primitive.reverse_compute_at import ReverseComputeAt
from blockwright.schedule.primitive.reverse_compute_inline import ReverseComputeInline
from blockwright.schedule.primitive.rfactor import Rfactor
from blockwright.schedule.primitive.sample_categorical import SampleCategorical
from blockwright.schedule.primitive.sample_compute_location import SampleComputeLocation
from blockwright.schedule.primitive.sample_imperfect_tile import SampleImperfectTile
from blockwright.schedule.primitive.sample_partitioned_tile import SamplePartitionedTile
from blockwright.schedule.primitive.sample_perfect_tile import SamplePerfectTile
from blockwright.schedule.primitive.set_scope import SetScope
from blockwright.schedule.primitive.software_pipeline import SoftwarePipeline
from blockwright.schedule.primitive.split import Split
from blockwright.schedule.primitive.tensorize import Tensorize
from blockwright.schedule.primitive.transform_block_layout import TransformBlockLayout
from blockwright.schedule.primitive.transform_layout import TransformLayout
from blockwright.schedule.primitive.unannotate import Unannotate
from blockwright.schedule.primitive.unroll import Unroll
from blockwright.schedule.primitive.vectorize import Vectorize
from blockwright.schedule.record import Primitive

PRIMITIVES: tuple[type[Primitive], ...] = (
    AddUnitLoop,
    Annotate,
    Blockize,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposeReduction,
    DoubleBuffer,
    Fuse,
    GetBlock,
    GetChildBlocks,
    GetConsumers,
    GetLoops,
    GetOutputBlocks,
    GetProducers,
    HorizontalFuse,
    LoopPartition,
    Merge,
    PadEinsum,
    Parallel,
    Reindex,
    Reorder,
    ReorderBlockIterVar,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    SampleCategorical,
    SampleComputeLocation,
    SampleImperfectTile,
    SamplePartitionedTile,
    SamplePerfectTile,
    SetScope,
    SoftwarePipeline,
    Split,
    Tensorize,
    TransformBlockLayout,
    TransformLayout,
    Unannotate,
    Unroll,
    Vectorize,
)
