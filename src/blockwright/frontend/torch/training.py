"""Warn about modules in training mode, which are compiled for inference."""

from __future__ import annotations

import warnings
from typing import Any

from blockwright.support import BlockwrightWarning

_SHOWN = 3


def warn_of_training(model: Any) -> None:
    """Warn (BW511) about parts of a model that behave differently in their current training mode.

    These are dropout layers, and norms with running statistics, which in training mode use the
    statistics of the batch.
    """
    result = [
        f"{name or 'the model'} ({type(part).__name__})"
        for name, part in model.named_modules()
        if part.training and _depends_on_mode(part)
    ]
    if result:
        more = f" and {len(result) - _SHOWN} more" if len(result) > _SHOWN else ""
        message = (
            "the model is in training mode but is compiled for inference: without dropout, with "
            f"the stored statistics of norms. Affected: {', '.join(result[:_SHOWN])}{more}"
        )
        warnings.warn(
            BlockwrightWarning(message, code="BW511", help="call model.eval() before"), stacklevel=3
        )


def _depends_on_mode(part: Any) -> bool:
    from torch import nn
    from torch.nn.modules import batchnorm, dropout

    kinds: Any = batchnorm, dropout
    if isinstance(part, kinds[0]._NormBase):
        return getattr(part, "running_mean", None) is not None
    if isinstance(part, kinds[1]._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU)
