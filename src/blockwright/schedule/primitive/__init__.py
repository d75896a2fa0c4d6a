"""The list of schedule primitives, one file each; a new primitive is added here only."""

from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.primitive.add_unit_loop import AddUnitLoop
from blockwright.schedule.primitive.annotate import Annotate
from blockwright.schedule.primitive.annotate_buffer_access import AnnotateBufferAccess
from blockwright.schedule.primitive.atomic_update import AtomicUpdate
from blockwright.schedule.primitive.bind import Bind
from blockwright.schedule.primitive.blockize import Blockize
from blockwright.schedule.primitive.cache_index import CacheIndex
from blockwright.schedule.primitive.cache_inplace import CacheInplace
from blockwright.schedule.primitive.cache_read import CacheRead
from blockwright.schedule.primitive.cache_write import CacheWrite
from blockwright.schedule.primitive.compute_at import ComputeAt
from blockwright.schedule.primitive.compute_inline import ComputeInline
from blockwright.schedule.primitive.decompose_padding import DecomposePadding
from blockwright.schedule.primitive.decompose_reduction import DecomposeReduction
from blockwright.schedule.primitive.double_buffer import DoubleBuffer
from blockwright.schedule.primitive.fuse import Fuse
from blockwright.schedule.primitive.fuse_reduction_epilogue import FuseReductionEpilogue
from blockwright.schedule.primitive.get_block import GetBlock
from blockwright.schedule.primitive.get_child_blocks import GetChildBlocks
from blockwright.schedule.primitive.get_consumers import GetConsumers
from blockwright.schedule.primitive.get_loops import GetLoops
from blockwright.schedule.primitive.get_output_blocks import GetOutputBlocks
from blockwright.schedule.primitive.get_producers import GetProducers
from blockwright.schedule.primitive.horizontal_fuse import HorizontalFuse
from blockwright.schedule.primitive.loop_partition import LoopPartition
from blockwright.schedule.primitive.merge import Merge
from blockwright.schedule.primitive.merge_reduction import MergeReduction
from blockwright.schedule.primitive.pad_einsum import PadEinsum
from blockwright.schedule.primitive.parallel import Parallel
from blockwright.schedule.primitive.read_at import ReadAt
from blockwright.schedule.primitive.reindex import Reindex
from blockwright.schedule.primitive.reindex_cache_read import ReindexCacheRead
from blockwright.schedule.primitive.reindex_cache_write import ReindexCacheWrite
from blockwright.schedule.primitive.reorder import Reorder
from blockwright.schedule.primitive.reorder_block_iter_var import ReorderBlockIterVar
from blockwright.schedule.primitive.reverse_compute_at import ReverseComputeAt
from blockwright.schedule.primitive.reverse_compute_inline import ReverseComputeInline
from blockwright.schedule.primitive.rfactor import Rfactor
from blockwright.schedule.primitive.rolling_buffer import RollingBuffer
from blockwright.schedule.primitive.sample_categorical import SampleCategorical
from blockwright.schedule.primitive.sample_compute_location import SampleComputeLocation
from blockwright.schedule.primitive.sample_imperfect_tile import SampleImperfectTile
from blockwright.schedule.primitive.sample_partitioned_tile import SamplePartitionedTile
from blockwright.schedule.primitive.sample_perfect_tile import SamplePerfectTile
from blockwright.schedule.primitive.set_axis_separator import SetAxisSeparator
from blockwright.schedule.primitive.set_scope import SetScope
from blockwright.schedule.primitive.software_pipeline import SoftwarePipeline
from blockwright.schedule.primitive.split import Split
from blockwright.schedule.primitive.storage_align import StorageAlign
from blockwright.schedule.primitive.store_at import StoreAt
from blockwright.schedule.primitive.tensorize import Tensorize
from blockwright.schedule.primitive.transform_block_layout import TransformBlockLayout
from blockwright.schedule.primitive.transform_layout import TransformLayout
from blockwright.schedule.primitive.unannotate import Unannotate
from blockwright.schedule.primitive.unroll import Unroll
from blockwright.schedule.primitive.vectorize import Vectorize
from blockwright.schedule.primitive.widen_dtype import WidenDtype
from blockwright.schedule.primitive.write_at import WriteAt

PRIMITIVES: tuple[type[Primitive], ...] = (
    AddUnitLoop,
    Annotate,
    AnnotateBufferAccess,
    AtomicUpdate,
    Bind,
    Blockize,
    CacheIndex,
    CacheInplace,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    DecomposePadding,
    DecomposeReduction,
    DoubleBuffer,
    Fuse,
    FuseReductionEpilogue,
    GetBlock,
    GetChildBlocks,
    GetConsumers,
    GetLoops,
    GetOutputBlocks,
    GetProducers,
    HorizontalFuse,
    LoopPartition,
    Merge,
    MergeReduction,
    PadEinsum,
    Parallel,
    ReadAt,
    Reindex,
    ReindexCacheRead,
    ReindexCacheWrite,
    Reorder,
    ReorderBlockIterVar,
    ReverseComputeAt,
    ReverseComputeInline,
    Rfactor,
    RollingBuffer,
    SampleCategorical,
    SampleComputeLocation,
    SampleImperfectTile,
    SamplePartitionedTile,
    SamplePerfectTile,
    SetAxisSeparator,
    SetScope,
    SoftwarePipeline,
    Split,
    StorageAlign,
    StoreAt,
    Tensorize,
    TransformBlockLayout,
    TransformLayout,
    Unannotate,
    Unroll,
    Vectorize,
    WidenDtype,
    WriteAt,
)
