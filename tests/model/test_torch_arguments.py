"""Less usual arguments of operators: each accepts what PyTorch accepts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import blockwright as bw

N = Dim("n", min=2, max=50)


def test_layers(agrees: Any) -> None:
    def layers(x: torch.Tensor, scale: torch.Tensor, slope: torch.Tensor) -> Any:
        return (
            F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
            F.avg_pool3d(x[None], 2, divisor_override=-3),
            F.batch_norm(x, None, None, scale, training=True),
            F.prelu(x, slope),
            F.prelu(x[0, 0, 0, 0], slope),
        )

    agrees(
        layers,
        torch.randn(2, 4, 8, 8),
        torch.randn(4),
        torch.tensor(0.3),
        shapes=[{0: N}, None, None],
        others=[(torch.randn(5, 4, 8, 8), torch.randn(4), torch.tensor(-2.0))],
    )


class TestAssignmentThroughAMask:
    MASK = torch.tensor([True, False, True, True])

    def test_of_values_for_each_true_element(self, agrees: Any) -> None:
        def assigned(x: torch.Tensor, rows: torch.Tensor, new: torch.Tensor, one: Any) -> Any:
            a, b, c, d = (x.clone() for _ in range(4))
            a[rows] = new
            b[rows] = one
            c[rows] = c[rows] * 2 + 1
            d[torch.stack([rows] * 3, 1)] = new.flatten()
            added = torch.index_put(x, (rows,), new, accumulate=True)
            return a, b, c, d, added

        agrees(
            assigned,
            torch.randn(4, 3),
            self.MASK,
            torch.randn(3, 3),
            torch.randn(3),
            shapes=[{0: N}, {0: N}, None, None],
            others=[
                (
                    torch.randn(6, 3),
                    torch.tensor([True, False] * 3),
                    torch.randn(3, 3),
                    torch.randn(3),
                )
            ],
        )

    def test_of_another_number_of_values_is_an_error(self) -> None:
        class Assigned(torch.nn.Module):
            def forward(self, x: torch.Tensor, mask: torch.Tensor, new: torch.Tensor) -> Any:
                x = x.clone()
                x[mask] = new
                return x

        inputs = (torch.randn(4, 3), self.MASK, torch.randn(3, 3))
        exe = bw.compile(Assigned(), inputs)
        with pytest.raises(bw.BlockwrightError, match="3 values are assigned") as caught:
            exe(inputs[0], ~self.MASK, inputs[2])
        assert caught.value.code == "BW708"


def test_positions_in_a_number(agrees: Any) -> None:
    agrees(lambda x: torch.nonzero(x), torch.tensor(3.0), others=[(torch.tensor(0.0),)])


class Keywords(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, shift: Any = None) -> Any:
        y = x * scale
        return y if shift is None else y + shift["by"]


class TestArgumentsByName:
    def test_are_those_of_the_call(self) -> None:
        x, scale, by = torch.randn(3, 4), torch.randn(4), torch.randn(4)
        model = Keywords()
        exe = bw.compile(
            model,
            (x,),
            example_kwargs={"scale": scale, "shift": {"by": by}},
            dynamic_shapes={"x": {0: N}, "scale": None, "shift": {"by": None}},
        )
        for count in (3, 7):
            x = torch.randn(count, 4)
            found = exe(x, scale=scale, shift={"by": by})
            torch.testing.assert_close(found, model(x, scale=scale, shift={"by": by}))

    def test_alone_are_enough(self) -> None:
        given = {"x": torch.randn(3, 4), "scale": torch.randn(4)}
        torch.testing.assert_close(
            bw.compile(Keywords(), example_kwargs=given)(**given), Keywords()(**given)
        )

    def test_must_be_a_dict(self) -> None:
        wrong: Any = [torch.randn(4)]
        with pytest.raises(
            bw.BlockwrightError, match="not a dict of arguments by name, but a list"
        ) as caught:
            bw.compile(Keywords(), (torch.randn(3, 4),), example_kwargs=wrong)
        assert caught.value.code == "BW908"


def test_histograms(agrees: Any) -> None:
    agrees(
        lambda x: (torch.histc(x, 10, -2, 2), torch.histc(x, 7), torch.histc(x[:3] * 0 + 1, 3)),
        torch.randn(40),
        others=[(torch.arange(40.0) / 10 - 2,)],
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_resized_with_antialiasing(mode: str, agrees: Any) -> None:
    def resized(x: torch.Tensor) -> Any:
        smooth = {"mode": mode, "antialias": True}
        return (
            F.interpolate(x, size=(9, 14), **smooth),
            F.interpolate(x, size=(33, 40), align_corners=True, **smooth),
            F.interpolate(x, scale_factor=0.4, **smooth),
        )

    agrees(
        resized,
        torch.randn(2, 3, 20, 31),
        shapes=[{2: Dim("h", min=8, max=64)}],
        others=[(torch.randn(2, 3, 50, 31),)],
    )


def test_sequences_of_floats_up_to_a_size(agrees: Any) -> None:
    agrees(
        lambda x: (
            torch.arange(0.5, x.shape[0], dtype=torch.float32) + 0,
            torch.arange(x.shape[0], dtype=torch.float32) * 2,
            torch.arange(0.5, x.shape[0] + 1, 0.25),
        ),
        torch.randn(5),
        shapes=[{0: N}],
        others=[(torch.randn(9),)],
    )
