"""Former names of options, strategies, operator attributes and annotations that are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

FORMER_OPTIONS: Mapping[str, str] = MappingProxyType({"disabled_rules": "disabled_strategies"})

FORMER_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "columns": "outer_reduction",
        "planes": "conv_nchw",
        "rows": "inner_reduction",
        "separable": "separable_conv",
        "window": "depthwise_pool",
    }
)

FORMER_ATTRIBUTES: Mapping[tuple[str, str], str] = MappingProxyType(
    {("attention", "keys_at_once"): "kv_block"}
)
"""Attributes of operators, by operator and former name."""

FORMER_ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "own_registers": "register_pressure",
        "read_ahead": "prefetch_read",
        "read_ahead_shared": "prefetch_shared",
        "short_tail": "tail_specialization",
        "streaming_stores": "nontemporal_stores",
        "unroll_explicit": "pragma_unroll_explicit",
        "write_ahead": "prefetch_write",
    }
)


def current_attributes(operator: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call with former names replaced by current ones."""
    return {FORMER_ATTRIBUTES.get((operator, key), key): v for key, v in attributes.items()}
