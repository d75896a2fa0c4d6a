"""Values of other kinds: objects that registered functions make and take."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.runtime.ffi import tvm_ffi

F, T = np.array(False), np.array(True)


class Box:
    """A Python object; the FFI passes it as it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def box(x: Any) -> Box:
    return Box(np.from_dlpack(x).copy())


def unbox(b: Box) -> Any:
    return b.value


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register: Any = tvm_ffi().register_global_func
    register("test.objects.box", box, override=True)
    register("test.objects.unbox", unbox, override=True)
    register("test.objects.pair", pair, override=True)
    register("test.objects.kinds", kinds, override=True)
    register("test.objects.fail", fail, override=True)


def pair(b: Box) -> Any:
    return b, b.value, (b.value, b)


def kinds(*args: Any) -> str:
    return ", ".join(type(a).__name__ for a in args)


def fail(b: Box) -> Any:
    raise ValueError("no")


def compiled(body: str, params: str = 'x: R.Tensor(("n",), "float32")') -> bw.CompiledModel:
    lines = "\n".join(f"        {line}" for line in body.strip().split("\n"))
    text = f"""
@I.ir_module
class Module:
    @R.function(pure=False)
    def main({params}):
        n = T.int64()
{lines}
"""
    module = bw.from_source(text)
    assert bw.ir.structural_equal(bw.from_source(module.script()), module)
    return bw.compile(module)


X = np.arange(3, dtype="f4")


def test_an_object_passes_from_function_to_function() -> None:
    exe = compiled("""
y = R.add(x, x)
b = R.call_packed("test.objects.box", y, sinfo_args=R.Object)
z = R.call_packed("test.objects.unbox", b, sinfo_args=R.Tensor((n,), "float32"))
return R.add(z, x)
""")
    np.testing.assert_array_equal(exe(X), 3 * X)


def test_objects_are_parameters_and_results() -> None:
    exe = compiled(
        """
c = b
if flag:
    d = c
else:
    d = R.call_packed("test.objects.box", x, sinfo_args=R.Object)
return R.add(x, x), (d, c)
""",
        'b: R.Object, x: R.Tensor(("n",), "float32"), flag: R.Tensor((), "bool")',
    )
    assert [p.kind for p in exe.signature.parameters] == ["object", "tensor", "tensor"]
    mine = Box(1)
    total, (same, again) = exe(mine, X, T)
    assert same is again is mine
    np.testing.assert_array_equal(total, 2 * X)
    _, (other, again) = exe(mine, X, F)
    assert again is mine
    np.testing.assert_array_equal(other.value, X)
    for value in ("text", 3, 2.5, None, (1, "two")):
        assert exe(value, X, T)[1][0] == value
    with pytest.raises(bw.ArgumentError) as caught:
        exe(mine, X, T, out=(X.copy(), (None, None)))
    assert caught.value.code == "BW722"


def test_tuples_of_packed_functions_are_unpacked() -> None:
    exe = compiled("""
b = R.call_packed("test.objects.box", x, sinfo_args=R.Object)
p = R.call_packed("test.objects.pair", b, sinfo_args=R.Tuple(
    R.Object, R.Tensor((n,), "float32"), R.Tuple(R.Tensor((n,), "float32"), R.Object)))
c = p[0]
v = p[1]
q = p[2]
w = q[0]
u = R.call_packed("test.objects.unbox", q[1], sinfo_args=R.Tensor((n,), "float32"))
return R.add(v, R.add(w, u)), c
""")
    total, other = exe(X)
    np.testing.assert_array_equal(total, 3 * X)
    np.testing.assert_array_equal(other.value, X)


def test_arguments_of_all_kinds() -> None:
    exe = compiled("""
return R.call_packed("test.objects.kinds", x, R.prim_value(n + 1), R.str("s"), R.shape([n, 2]),
                     (x, (x, x)), scale=0.5, sinfo_args=R.Object)
""")
    assert exe(X) == "Tensor, int, str, Shape, Array, float"


@pytest.mark.parametrize("flag", [F, T])
def test_references_are_released_on_every_path(flag: Any) -> None:
    exe = compiled(
        """
c = b
d = R.call_packed("test.objects.pair", c, sinfo_args=R.Object)
if flag:
    e = R.call_packed("test.objects.fail", d, sinfo_args=R.Object)
else:
    e = c
y = R.match_cast(e, R.Tensor((n,), "float32"))
return y, c
""",
        'b: R.Object, x: R.Tensor(("n",), "float32"), flag: R.Tensor((), "bool")',
    )
    mine = Box(X)
    before = sys.getrefcount(mine)
    for _ in range(3):
        with pytest.raises(ValueError, match="no") if flag else pytest.raises(bw.ArgumentError):
            exe(mine, X, flag)
        gc.collect()
        assert sys.getrefcount(mine) == before


def test_an_object_is_checked_where_a_tensor_is_expected() -> None:
    exe = compiled(
        'y = R.match_cast(b, R.Tensor((n,), "float32"))\nreturn R.add(x, y)',
        'b: R.Object, x: R.Tensor(("n",), "float32")',
    )
    np.testing.assert_array_equal(exe(X, X), 2 * X)
    wrong = [(Box(1), "BW702"), (X.astype("f8"), "BW703"), (X[:2].copy(), "BW704")]
    for value, code in wrong:
        with pytest.raises(bw.ArgumentError) as caught:
            exe(value, X)
        assert caught.value.code == code


def test_tensors_of_unknown_size_are_cast_where_they_are_used() -> None:
    exe = compiled(
        """
y = R.call_packed("test.objects.unbox", b, sinfo_args=R.Tensor(ndim=1))
z = R.match_cast(y, R.Tensor((n,), "float32"))
return R.add(x, z), y
""",
        'b: R.Object, x: R.Tensor(("n",), "float32")',
    )
    total, same = exe(Box(X), X)
    np.testing.assert_array_equal(total, 2 * X)
    np.testing.assert_array_equal(same, X)


@pytest.mark.parametrize("kind", ["R.Object", "R.Tensor(ndim=1)"])
def test_sizes_of_objects_are_not_known(kind: str) -> None:
    """A function that returns them as well makes them known."""
    body = f"""
k = T.int64()
y = R.call_packed("test.objects.unbox", b, sinfo_args={kind})
z = R.match_cast(y, R.Tensor((k,), "float32"))
return R.exp(z)
"""
    with pytest.raises(bw.GraphError, match="would be a size of an object") as caught:
        compiled(body, 'b: R.Object, x: R.Tensor(("n",), "float32")')
    assert caught.value.code == "BW407"


@pytest.mark.parametrize("flag", [F, T])
def test_a_tensor_is_an_object_where_the_other_branch_gives_one(flag: Any) -> None:
    exe = compiled(
        """
if flag:
    y = R.add(x, x)
else:
    y = R.call_packed("test.objects.box", x, sinfo_args=R.Object)
return R.call_packed("test.objects.kinds", y, sinfo_args=R.Object), y
""",
        'x: R.Tensor(("n",), "float32"), flag: R.Tensor((), "bool")',
    )
    kind, _ = exe(X, flag)
    assert kind == ("Tensor" if flag else "Box")
