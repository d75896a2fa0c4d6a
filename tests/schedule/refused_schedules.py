"""Twenty schedules as people write them, each with one step that must be refused.

The docstring of each says what its author wants; what is wrong, and what to do instead, the error
has to say.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.schedule import Schedule
from tests.schedule import refused_programs as programs


def parallel_over_the_sum(sch: Schedule) -> None:
    """Spread the matrix product over the cores, without a race."""
    i, j, k = sch.get_loops("matmul")
    _, ji = sch.split(j, [None, 16])
    ko, _ = sch.split(k, [None, 8])
    sch.reorder(ko, i)
    sch.vectorize(ji)
    sch.parallel(ko)


def split_after_parallel(sch: Schedule) -> None:
    """Give each core tiles of 4 rows by 16 columns of the product."""
    i, j, k = sch.get_loops("matmul")
    sch.parallel(i)
    _, ji = sch.split(j, [None, 16])
    sch.reorder(k, ji)
    sch.vectorize(ji)
    sch.split(i, [None, 4])


def fuse_past_a_second_statement(sch: Schedule) -> None:
    """Have one parallel loop over the 8 x 8 tiles of the layer, the ReLU inside the tiles."""
    sch.compute_inline("bias")
    i, j, _ = sch.get_loops("matmul")
    io, _ = sch.split(i, [8, None])
    jo, _ = sch.split(j, [8, None])
    sch.reverse_compute_at(sch.get_block("relu"), io)
    sch.parallel(sch.fuse(io, jo))


def pad_at_the_wrong_consumer(sch: Schedule) -> None:
    """Keep the padded input small: pad only the rows that the convolution needs next."""
    f, h, _, _, _, _ = sch.get_loops("conv")
    sch.reorder(h, f)
    rf, rh, _ = sch.get_loops("relu")
    sch.reorder(rh, rf)
    sch.parallel(rh)
    sch.compute_at(sch.get_block("pad"), rh)


def inline_the_product(sch: Schedule) -> None:
    """Have the whole layer in one pass over the output, without buffers for M and S."""
    sch.compute_inline("bias")
    i, j = sch.get_loops("relu")
    _, ji = sch.split(j, [None, 16])
    sch.vectorize(ji)
    sch.parallel(i)
    sch.compute_inline("matmul")


def bias_inside_the_sum(sch: Schedule) -> None:
    """Apply bias and ReLU to each tile of the product while it is in the cache."""
    sch.reverse_compute_inline("relu")
    i, j, k = sch.get_loops("matmul")
    io, ii = sch.split(i, [None, 8])
    jo, ji = sch.split(j, [None, 32])
    sch.reorder(io, jo, k, ii, ji)
    sch.reverse_compute_at(sch.get_block("bias"), k)


def initialise_inside_the_sum(sch: Schedule) -> None:
    """Zero each tile of the product in a nest of its own, so that the inner loops only add."""
    i, j, k = sch.get_loops("matmul")
    io, ii = sch.split(i, [None, 8])
    jo, ji = sch.split(j, [None, 16])
    ko, ki = sch.split(k, [None, 4])
    sch.reorder(io, jo, ko, ii, ki, ji)
    sch.decompose_reduction(sch.get_block("matmul"), ii)


def factor_the_rows(sch: Schedule) -> None:
    """Give the sum of a long row to several cores, which make partial sums."""
    sch.compute_inline("exp")
    i, k = sch.get_loops("sum")
    sch.split(k, [8, None])
    io, _ = sch.split(i, [None, 8])
    sch.rfactor(io, 0)


def tile_a_size_that_does_not_divide(sch: Schedule) -> None:
    """Store the scaled matrix in tiles of 16 x 16 so that the transposition reads whole lines."""
    i, _ = sch.get_loops("transpose")
    sch.split(i, [None, 16])
    sch.parallel(sch.get_loops("scale")[0])

    def tiles(i: ir.Var, j: ir.Var) -> list[ir.Expr]:
        return [i // 16, j // 16, i % 16, j % 16]

    sch.transform_layout("scale", "D", tiles)


def tensorize_another_tile(sch: Schedule) -> None:
    """Let the register-tile intrinsic outer_product_4x8_float32 do the innermost work."""
    i, j, k = sch.get_loops("matmul")
    io, ii = sch.split(i, [None, 4])
    jo, ji = sch.split(j, [None, 16])
    sch.reorder(io, jo, k, ii, ji)
    sch.decompose_reduction(sch.get_block("matmul"), k)
    sch.tensorize(ii, "outer_product_4x8_float32")


def two_sizes_left_open(sch: Schedule) -> None:
    """Tile the convolution: 8 rows by 8 columns, the rows in vectors of two blocks each."""
    sch.parallel(sch.get_loops("relu")[0])
    sch.vectorize(sch.get_loops("relu")[2])
    sch.tile("conv", "f h w c kh kw -> f h0 w0 c kh kw h1 w1 w2", h1=8, w2=8)


def misspelt_block(sch: Schedule) -> None:
    """Run the rows of the layer normalisation in parallel, mean and squares included."""
    i, _ = sch.get_loops("norm")
    sch.parallel(i)
    sch.compute_at(sch.get_block("squares"), i)
    sch.compute_at(sch.get_block("mean"), i)


def loop_that_was_split(sch: Schedule) -> None:
    """Blur in strips of 8 rows, strips in parallel, columns in vectors."""
    i, j = sch.get_loops("blur_y")
    io, _ = sch.split(i, [None, 8])
    sch.compute_at(sch.get_block("blur_x"), io)
    sch.vectorize(j)
    sch.parallel(i)


def output_into_shared_memory(sch: Schedule) -> None:
    """On a GPU, one thread block per row, which gathers its row of Y in shared memory."""
    sch.compute_inline("exp")
    i, _ = sch.get_loops("div")
    sch.compute_at(sch.get_block("sum"), i)
    sch.compute_at(sch.get_block("max"), i)
    sch.bind(i, "blockIdx.x")
    sch.set_scope("max", "M", "shared")
    sch.set_scope("div", "Y", "shared")


def cache_what_is_not_read(sch: Schedule) -> None:
    """Read the weights G from a local copy."""
    i, j = sch.get_loops("norm")
    sch.split(j, [None, 16])
    sch.compute_at(sch.get_block("squares"), i)
    sch.cache_read("squares", "G", "local")


def block_of_a_part_of_the_sum(sch: Schedule) -> None:
    """Treat eight steps of each sum, with the copies that they need, as one block."""
    _, _, k = sch.get_loops("matmul")
    _, ki = sch.split(k, [None, 8])
    sch.compute_at(sch.cache_read("matmul", "W", "local"), ki)
    sch.blockize(ki)


def consumer_before_producer(sch: Schedule) -> None:
    """Overlap the horizontal blur of the next strip with the vertical blur of this one."""
    i, _ = sch.get_loops("blur_y")
    io, _ = sch.split(i, [None, 8])
    sch.compute_at(sch.get_block("blur_x"), io)
    sch.software_pipeline(io, stages=[1, 0], orders=[1, 0])


def threads_of_two_sizes(sch: Schedule) -> None:
    """One thread block per row of softmax, all four steps by the same threads."""
    i, j = sch.get_loops("div")
    sch.bind(i, "blockIdx.x")
    for name in ("sum", "exp", "max"):
        sch.compute_at(sch.get_block(name), i)
    _, ji = sch.split(j, [None, 128])
    sch.bind(ji, "threadIdx.x")
    _, ei = sch.split(sch.get_loops("exp")[-1], [None, 64])
    sch.bind(ei, "threadIdx.x")


def merge_of_unequal_halves(sch: Schedule) -> None:
    """Copy both parts of the concatenation in one loop nest."""
    i, j = sch.get_loops("relu")
    sch.parallel(i)
    sch.vectorize(j)
    sch.merge(sch.get_loops("upper")[0], sch.get_loops("lower")[0])


def atomic_argmax(sch: Schedule) -> None:
    """Find the largest element of each row by 8 parallel workers, each on its part of the row."""
    i, k = sch.get_loops("argmax")
    ko, _ = sch.split(k, [8, None])
    sch.decompose_reduction(sch.get_block("argmax"), ko)
    sch.parallel(i)
    sch.atomic_update("argmax")
    sch.parallel(ko)


Case = tuple[str, Callable[[Schedule], None], str]
CASES: list[Case] = [
    (programs.MATMUL, parallel_over_the_sum, "BW317"),
    (programs.MATMUL, split_after_parallel, "BW312"),
    (programs.DENSE, fuse_past_a_second_statement, "BW310"),
    (programs.CONV, pad_at_the_wrong_consumer, "BW322"),
    (programs.DENSE, inline_the_product, "BW314"),
    (programs.DENSE, bias_inside_the_sum, "BW316"),
    (programs.MATMUL, initialise_inside_the_sum, "BW331"),
    (programs.SOFTMAX, factor_the_rows, "BW332"),
    (programs.TRANSPOSE, tile_a_size_that_does_not_divide, "BW324"),
    (programs.MATMUL, tensorize_another_tile, "BW327"),
    (programs.CONV, two_sizes_left_open, "BW304"),
    (programs.LAYER_NORM, misspelt_block, "BW302"),
    (programs.STENCIL, loop_that_was_split, "BW301"),
    (programs.SOFTMAX, output_into_shared_memory, "BW321"),
    (programs.LAYER_NORM, cache_what_is_not_read, "BW320"),
    (programs.DENSE, block_of_a_part_of_the_sum, "BW365"),
    (programs.STENCIL, consumer_before_producer, "BW370"),
    (programs.SOFTMAX, threads_of_two_sizes, "BW380"),
    (programs.CONCAT, merge_of_unequal_halves, "BW355"),
    (programs.ARGMAX, atomic_argmax, "BW338"),
]
