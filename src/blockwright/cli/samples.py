"""Examples for schedule error codes: a rejected schedule and a corrected one.

`blockwright explain` prints them; a test runs both."""

from __future__ import annotations

import msgspec

_DENSE = """\
@T.prim_func
def dense(X: T.Buffer((8, 16), "float32"), W: T.Buffer((16, 12), "float32"),
          Y: T.Buffer((8, 12), "float32")):
    M = T.alloc_buffer((8, 12), "float32")
    for i, j, k in T.grid(8, 12, 16):
        with T.block("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                M[vi, vj] = T.float32(0)
            M[vi, vj] = M[vi, vj] + X[vi, vk] * W[vk, vj]
    for i, j in T.grid(8, 12):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(M[vi, vj], T.float32(0))"""
_BLUR = """\
@T.prim_func
def blur(X: T.Buffer((10, 8), "float32"), Y: T.Buffer((8, 8), "float32"),
         Z: T.Buffer((8, 8), "float32")):
    H = T.alloc_buffer((10, 8), "float32")
    for y, x in T.grid(10, 8):
        with T.block("scale"):
            vy, vx = T.axis.remap("SS", [y, x])
            H[vy, vx] = X[vy, vx] * 0.25
    for y, x in T.grid(8, 8):
        with T.block("sum3"):
            vy, vx = T.axis.remap("SS", [y, x])
            Y[vy, vx] = H[vy, vx] + H[vy + 1, vx] + H[vy + 2, vx]
    for y, x in T.grid(8, 8):
        with T.block("rest"):
            vy, vx = T.axis.remap("SS", [y, x])
            Z[vy, vx] = H[vy, vx]"""


class ErrorSample(msgspec.Struct, frozen=True):
    """A program, steps of which the last is rejected, and steps that reach the same goal."""

    program: str
    aim: str
    refused: str
    repair: str

    def text(self) -> str:
        """Return the text that `blockwright explain` prints."""
        return "\n\n".join(
            (self.program, f"# rejected: {self.aim}\n{self.refused}", f"# instead\n{self.repair}")
        )


_MATMUL = 'i, j, k = sch.get_loops("matmul")\n'
SAMPLES: dict[str, ErrorSample] = {
    "BW301": ErrorSample(
        _DENSE, "the loop no longer exists: an earlier step split it",
        _MATMUL + "sch.split(j, [None, 4])\nsch.parallel(j)",
        _MATMUL + "outer, inner = sch.split(j, [None, 4])\nsch.parallel(outer)"),
    "BW302": ErrorSample(
        _DENSE, "no block has this name",
        'sch.get_block("bias")', 'sch.get_block("relu")'),
    "BW304": ErrorSample(
        _DENSE, "two factors are None",
        _MATMUL + "sch.split(k, [None, None])", _MATMUL + "sch.split(k, [None, 4])"),
    "BW310": ErrorSample(
        _DENSE, "there is a statement between the loops",
        _MATMUL + 'sch.reverse_compute_at("relu", i)\nsch.fuse(i, j)',
        _MATMUL + 'ij = sch.fuse(i, j)\nsch.reverse_compute_at("relu", ij)'),
    "BW312": ErrorSample(
        _DENSE, "the loop is already parallel: split it first",
        _MATMUL + "sch.parallel(i)\nsch.split(i, [None, 4])",
        _MATMUL + "outer, inner = sch.split(i, [None, 4])\nsch.parallel(outer)"),
    "BW314": ErrorSample(
        _DENSE, "a reduction cannot be inlined into its reader",
        'sch.compute_inline("matmul")',
        'sch.reverse_compute_at("relu", sch.get_loops("matmul")[1])'),
    "BW315": ErrorSample(
        _DENSE, "the loops inside the new block are not the inner parts of its iterators",
        'i, j = sch.get_loops("relu")\nio, ii = sch.split(i, [None, 4])\n'
        "sch.reorder(ii, io, j)\nsch.blockize(io)",
        'i, j = sch.get_loops("relu")\nio, ii = sch.split(i, [None, 4])\nsch.blockize(ii)'),
    "BW316": ErrorSample(
        _DENSE, "the reader would run before the sum is complete",
        _MATMUL + 'sch.reorder(i, k, j)\nsch.reverse_compute_at("relu", k)',
        _MATMUL + 'sch.reverse_compute_at("relu", j)'),
    "BW317": ErrorSample(
        _DENSE, "parallel iterations would add to the same element",
        _MATMUL + "outer, inner = sch.split(k, [4, None])\nsch.parallel(outer)",
        _MATMUL + "outer, inner = sch.split(k, [4, None])\npart = sch.rfactor(outer, 0)\n"
        "sch.parallel(sch.get_loops(part)[2])"),
    "BW318": ErrorSample(
        _DENSE, "the factors do not cover the loop",
        _MATMUL + "sch.split(j, [2, 4])", _MATMUL + "sch.split(j, [None, 4])"),
    "BW320": ErrorSample(
        _DENSE, "the block does not read the buffer",
        'sch.cache_read("relu", "X", "local")', 'sch.cache_read("matmul", "X", "local")'),
    "BW321": ErrorSample(
        _DENSE, "the buffer is a parameter, which the caller allocates",
        'sch.set_scope("relu", "Y", "shared")', 'sch.cache_write("relu", "Y", "shared")'),
    "BW322": ErrorSample(
        _BLUR, "the producer has another reader outside the loop",
        'sch.compute_at("scale", sch.get_loops("sum3")[0])',
        'y = sch.merge(sch.get_loops("sum3")[0], sch.get_loops("rest")[0])\n'
        'sch.compute_at("scale", y)'),
    "BW324": ErrorSample(
        _DENSE, "the layout maps two elements to one location",
        'sch.transform_layout("matmul", "M", lambda i, j: (i, j // 2))',
        'sch.transform_layout("matmul", "M", lambda i, j: (i, j // 2, j % 2))'),
    "BW331": ErrorSample(
        _DENSE, "the initialization would run inside the reduction loop",
        _MATMUL + 'ko, ki = sch.split(k, [None, 4])\nsch.reorder(ko, i, j, ki)\n'
        'sch.decompose_reduction("matmul", i)',
        _MATMUL + 'ko, ki = sch.split(k, [None, 4])\nsch.reorder(ko, i, j, ki)\n'
        'sch.decompose_reduction("matmul", ko)'),
    "BW332": ErrorSample(
        _DENSE, "the loop is not a reduction loop",
        _MATMUL + "sch.rfactor(j, 0)", _MATMUL + "sch.rfactor(k, 0)"),
    "BW337": ErrorSample(
        _DENSE, "the epilogue would apply to partial sums",
        'sch.fuse_reduction_epilogue("matmul", "relu")',
        'sch.reverse_compute_at("relu", sch.get_loops("matmul")[1])'),
    "BW355": ErrorSample(
        _BLUR, "the loops have different trip counts",
        'sch.merge(sch.get_loops("scale")[0], sch.get_loops("rest")[0])',
        'first, last = sch.loop_partition(sch.get_loops("scale")[0], [8, 2])\n'
        'sch.merge(first, sch.get_loops("rest")[0])'),
    "BW364": ErrorSample(
        _DENSE, "the loop mixes a spatial and a reduction iterator",
        _MATMUL + 'jk = sch.fuse(j, k)\nsch.decompose_reduction("matmul", jk)',
        _MATMUL + 'sch.decompose_reduction("matmul", j)\nsch.fuse(j, k)'),
}  # fmt: skip
