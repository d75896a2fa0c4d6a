"""Non-maximum suppression: a data-dependent loop around fragments built in Python."""

from blockwright import ir
from blockwright.script import tir as T
from examples.programs.sort import power_of_two, sort_in_place


def area(box: list[ir.Expr]) -> ir.Expr:
    return T.max(box[2] - box[0], T.float32(0)) * T.max(box[3] - box[1], T.float32(0))


def overlap(a: list[ir.Expr], b: list[ir.Expr]) -> ir.Expr:
    """Intersection over union of two boxes (x0, y0, x1, y1); 0 if both are empty."""
    inner = [T.max(a[0], b[0]), T.max(a[1], b[1]), T.min(a[2], b[2]), T.min(a[3], b[3])]
    common = area(inner)
    union = area(a) + area(b) - common
    return T.if_then_else(union > 0, common / union, T.float32(0))


def nms(count: int, keep: int, iou: float, least_score: float) -> ir.PrimFunc:
    """A program with parameters (boxes, scores, selected, number of selected).

    Boxes are selected by falling score; a box that overlaps a selected one by more than `iou` is
    dropped. At most `keep` are selected, none with a score of `least_score` or less; the rest of
    `selected` is −1.
    """
    padded = power_of_two(count)

    @T.prim_func
    def nms(
        boxes: T.Buffer((count, 4), "float32"),
        scores: T.Buffer((count,), "float32"),
        selected: T.Buffer((keep,), "int32"),
        found: T.Buffer((1,), "int32"),
    ):
        with T.block("nms"):
            T.reads(boxes[0:count, 0:4], scores[0:count], found[0])
            T.writes(selected[0:keep], found[0])
            keys = T.alloc_buffer((padded,), "float32")
            ids = T.alloc_buffer((padded,), "int32")
            alive = T.alloc_buffer((padded,), "bool")
            for i in range(padded):
                keys[i] = T.if_then_else(i < count, scores[i], T.float32("nan"))
                ids[i] = i
                alive[i] = i < count
            sort_in_place(keys, ids, padded, descending=True)
            found[0] = 0
            for i in range(keep):
                selected[i] = -1
            for i in range(count):
                if found[0] >= keep or not (keys[i] > T.float32(least_score)):
                    break
                if not alive[i]:
                    continue
                box: T.int32 = ids[i]
                selected[found[0]] = box
                found[0] += 1
                for j in range(count - 1 - i):
                    other: T.int32 = ids[i + 1 + j]
                    share: T.float32 = overlap(
                        [boxes[box, k] for k in range(4)], [boxes[other, k] for k in range(4)]
                    )
                    if share > T.float32(iou):
                        alive[i + 1 + j] = False

    return nms
