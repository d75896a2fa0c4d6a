"""Numbers that become elements: fractions go, unsigned types wrap below 0, the rest is refused."""

import pytest

import blockwright as bw

torch = pytest.importorskip("torch")


class Calls(torch.nn.Module):
    def __init__(self, *calls):
        super().__init__()
        self.calls = calls

    def forward(self, x):
        return tuple(call(x) for call in self.calls)


def assigned(x, value):
    y = x.clone()
    y[1:] = value
    return y


STORES = {
    "full_like": torch.full_like,
    "fill_": lambda x, v: x.clone().fill_(v),
    "new_full": lambda x, v: x.new_full((2, 3), v),
    "masked_fill": lambda x, v: x.masked_fill(x > 3, v),
    "assigned": assigned,
}
LIMITS = {
    "where": lambda x, v: torch.where(x > 3, x, v),
    "clamp_min": lambda x, v: x.clamp(min=v),
    "clamp_max": lambda x, v: x.clamp_max(v),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "bool", "float16"])
@pytest.mark.parametrize("value", [1.5, -2.5, -3, -255, 127, True])
def test_numbers_become_elements_as_in_eager_mode(dtype, value):
    x = torch.tensor([0, 1, 4, 9, 100]).to(getattr(torch, dtype))
    calls = []
    for call in (*STORES.values(), *LIMITS.values()):
        try:
            call(x, value)
        except RuntimeError:
            continue
        calls.append(lambda x, call=call: call(x, value))
    for found, call in zip(bw.compile(Calls(*calls), (x,))(x), calls, strict=True):
        torch.testing.assert_close(found, call(x), rtol=0, atol=0)


REFUSED_BY_EAGER = [
    (name, dtype, value)
    for name in ("full_like", "fill_", "new_full", "masked_fill", "where")
    for dtype, value in (("uint8", 300), ("int8", -129), ("float16", 1e6))
    if (name, dtype) != ("where", "float16")  # eager gives infinity
]


@pytest.mark.parametrize(("name", "dtype", "value"), REFUSED_BY_EAGER)
def test_numbers_outside_of_the_type_are_refused(name, dtype, value):
    call = {**STORES, **LIMITS}[name]
    x = torch.tensor([0, 1, 4]).to(getattr(torch, dtype))
    with pytest.raises(RuntimeError, match="overflow"):
        call(x, value)
    with pytest.raises(bw.BlockwrightError, match="BW5"):
        bw.compile(Calls(lambda x: call(x, value)), (x,))


@pytest.mark.parametrize("call", [
    lambda x: x.masked_fill(x > 3, x.shape[0]),
    lambda x: torch.where(x > 3, x, x.shape[0] * 2),
    lambda x: torch.full_like(x, x.shape[0]),
    lambda x: x ** x.shape[0],
    lambda x: x.add(x, alpha=x.shape[0]),
    lambda x: x.sub(x * 2, alpha=x.shape[0]),
    lambda x: x + max(x.shape[0], 7),
    lambda x: x * min(x.shape[0] - 1, 4),
])  # fmt: skip
def test_sizes_become_elements(call):
    model, n = Calls(call), torch.export.Dim("n", min=2, max=64)
    compiled = bw.compile(model, (torch.arange(5.0),), dynamic_shapes=(({0: n}),))
    for size in (2, 5, 9):
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
