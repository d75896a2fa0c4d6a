"""Former names of options, strategies and annotations that are still accepted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
