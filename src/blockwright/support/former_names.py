"""Former names of options, strategies and annotations, which are accepted, and of attributes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FORMER_OPTIONS: Mapping[str, str] = MappingProxyType(
    {"disabled_rules": "disabled_strategies", "stages": "pipeline"}
)

FORMER_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "columns": "outer_reduction",
        "planes": "conv_nchw",
        "rows": "inner_reduction",
        "separable": "separable_conv",
        "window": "depthwise_pool",
    }
)

FORMER_SWITCHES: Mapping[str, str] = MappingProxyType({"winograd": "winograd"})
"""Options that disable an implementation if they are False, with its name."""

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


_FORMER_ATTRIBUTES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("attention", "keys_at_once"): "split_kv(block={})",
        ("attention", "kv_block"): "split_kv(block={})",
        ("nn.conv2d", "winograd"): "winograd(tile={})",
    }
)
"""Attributes of operators that are no longer accepted, with the implementation that they chose."""


def replacement_of_attribute(operator: str, name: str, value: object) -> str:
    """What to write instead of a former attribute; "" for other names."""
    form = _FORMER_ATTRIBUTES.get((operator, name))
    if form is None:
        return ""
    return f'write implementation="{form.format(value) if value else "default"}"'
