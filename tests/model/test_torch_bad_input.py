"""Bad input to a model: a clear error with a code and the user's names, fresh or from a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw

IDS = torch.ones((4, 9), dtype=torch.int64)
MASK = torch.ones((4, 9), dtype=torch.int64)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


# arguments, code, what the message must name
BAD: dict[str, tuple[tuple[Any, ...], str, tuple[str, ...]]] = {
    "no argument": ((), "BW701", ("2 arguments", "input_ids, attention_mask", "got 0")),
    "one argument": ((IDS,), "BW701", ("got 1",)),
    "three arguments": ((IDS, MASK, MASK), "BW701", ("got 3",)),
    "None": ((None, MASK), "BW702", ("input_ids", "None")),
    "None as mask": ((IDS, None), "BW702", ("attention_mask", "None")),
    "a string": (("text", MASK), "BW702", ("input_ids", "str")),
    "a list": ((IDS, [[1, 2]]), "BW702", ("attention_mask", "list")),
    "a number": ((3, MASK), "BW702", ("input_ids", "an integer")),
    "an object": ((IDS, object()), "BW702", ("attention_mask", "object")),
    "a sparse tensor": ((IDS.to_sparse(), MASK), "BW702", ("input_ids", "sparse")),
    "float": ((IDS.float(), MASK), "BW703", ("input_ids", "int64", "got float32")),
    "int32": ((IDS, MASK.int()), "BW703", ("attention_mask", "int64", "got int32")),
    "unsigned": ((IDS.numpy().astype("u8"), MASK), "BW703", ("input_ids", "got uint64")),
    "text array": ((np.array([["a"]]), MASK), "BW703", ("input_ids", "<U1")),
    "rank 1": ((IDS[0], MASK), "BW704", ("input_ids", "2 dimensions", "got 1")),
    "rank 3": ((IDS, MASK[None]), "BW704", ("attention_mask", "got 3")),
    "another device": ((IDS.to("meta"), MASK), "BW705", ("input_ids", "meta", "CPU")),
    "another device, transposed": ((IDS, MASK.t().to("meta")), "BW705", ("attention_mask",)),
    "batch too large": ((ones(65, 9), ones(65, 9)), "BW708", ("input_ids", "at most 64", "65")),
    "sequence too short": ((ones(4, 1), ones(4, 1)), "BW708", ("input_ids", "at least 2", "1")),
    "sequence too long": ((ones(1, 65), ones(1, 65)), "BW708", ("at most 64", "65")),
    "no rows": ((IDS[:0], MASK[:0]), "BW708", ("at least 1", "got 0")),
    "no columns": ((IDS[:, :0], MASK[:, :0]), "BW708", ("at least 2", "got 0")),
    "batches differ": ((IDS, MASK[:3]), "BW709", ("attention_mask", "input_ids", "4", "3")),
    "sequences differ": ((IDS, MASK[:, :5]), "BW709", ("attention_mask", "input_ids", "9", "5")),
}  # fmt: skip


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def exe(request: pytest.FixtureRequest, encoder_exe: Any, encoder_artefact: Any) -> Any:
    return encoder_exe if request.param == "compiled" else bw.load(encoder_artefact)


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(exe: Any, case: str) -> None:
    arguments, code, named = BAD[case]
    with pytest.raises(bw.ArgumentError) as caught:
        exe(*arguments)
    assert caught.value.code == code
    assert caught.value.help
    for text in named:
        assert text in caught.value.message


@pytest.mark.parametrize("wrong", [100, -1, 2**40])
def test_tokens_outside_the_vocabulary_are_refused(exe: Any, wrong: int) -> None:
    ids = IDS.clone()
    ids[3, 8] = wrong
    with pytest.raises(bw.ArgumentError) as caught:
        exe(ids, MASK)
    assert caught.value.code == "BW708"
    assert "input_ids" in caught.value.message
    assert "less than 100" in caught.value.message


def test_a_bad_call_leaves_the_model_usable(
    exe: Any, encoder: Any, compare_with_torch: Any, make_tokens: Any
) -> None:
    inputs = make_tokens(4, 9)
    for _ in range(3):
        with pytest.raises(bw.ArgumentError):
            exe(inputs[0], inputs[1][:2])
        compare_with_torch(exe, encoder, inputs)


def test_keywords_are_the_models_argument_names(exe: Any, make_tokens: Any) -> None:
    ids, mask = make_tokens(2, 5)
    expected = exe(ids, mask)
    assert torch.equal(exe(attention_mask=mask, input_ids=ids), expected)
    assert torch.equal(exe(ids, attention_mask=mask), expected)
    for given, text in (
        ({"mask": mask}, "`mask`"),
        ({}, "attention_mask"),
        ({"input_ids": ids, "attention_mask": mask}, "twice"),
    ):
        with pytest.raises(bw.ArgumentError, match=text) as caught:
            exe(ids, **given)
        assert caught.value.code == "BW701"


def test_answers_come_back_in_the_framework_of_the_arguments(exe: Any, make_tokens: Any) -> None:
    ids, mask = make_tokens(2, 5)
    expected = exe(ids, mask)
    found = exe(ids.numpy(), mask.numpy())
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, expected.numpy())
    again = torch.from_dlpack(exe(Foreign(ids), Foreign(mask)))
    assert torch.equal(again, expected)


class Foreign:
    """An array of some other framework: only the exchange protocol."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def underaligned(tensor: torch.Tensor) -> np.ndarray:
    array = tensor.numpy()
    raw = np.empty(array.nbytes + 8, np.uint8)
    view = raw[3 : 3 + array.nbytes].view(np.int64).reshape(array.shape)
    view[...] = array
    assert view.ctypes.data % 8
    return view


LAYOUTS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every second column": lambda t: t.repeat_interleave(2, dim=1)[:, ::2],
    "a column of a wider array": lambda t: torch.cat([t, t], dim=1)[:, : t.shape[1]],
    "expanded": lambda t: t[:1].expand(t.shape),
    "transposed array": lambda t: np.asfortranarray(t.numpy()),
    "reversed array": lambda t: t.numpy()[::-1, ::-1],
    "under-aligned array": underaligned,
    "foreign byte order": lambda t: t.numpy().astype(">i8"),
    "read-only array": lambda t: np.frombuffer(t.numpy().tobytes(), np.int64).reshape(t.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_right_answer(exe: Any, make_tokens: Any, layout: str) -> None:
    ids, mask = make_tokens(5, 6)
    odd = LAYOUTS[layout](ids)
    plain = torch.from_numpy(np.asarray(odd).astype(np.int64, order="C"))
    expected = exe(plain, mask)
    before = exe.copies
    found = torch.as_tensor(exe(odd, mask))
    assert torch.equal(found, expected)
    assert exe.copies - before == (0 if layout == "read-only array" else 1)


def test_sizes_that_an_export_took_for_others_are_refused() -> None:
    """Half of four rows less one is one row, whose axis the exporter confuses with that of one
    repeated column; PyTorch's own guard says so of three rows, where no row is left."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:-3:2, :, 0].repeat(2, 1, 2)

    free = torch.export.Dim.AUTO
    x = torch.arange(16).reshape(4, 1, 4, 1)
    exported = torch.export.export(Model(), (x,), dynamic_shapes=({0: free, 2: free},))
    compiled = bw.compile(exported)
    for rows, columns in ((4, 4), (5, 3), (4, 2)):
        y = torch.arange(rows * columns).reshape(rows, 1, columns, 1)
        assert torch.equal(compiled(y), Model()(y))
    with pytest.raises(AssertionError, match="Guard failed"):
        exported.module()(torch.zeros((3, 1, 4, 1), dtype=torch.int64))
    with pytest.raises(bw.ArgumentError) as refused:
        compiled(torch.zeros((3, 1, 4, 1), dtype=torch.int64))
    assert refused.value.code == "BW719"
