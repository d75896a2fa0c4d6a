"""The table of converters of ONNX operators.

Operators whose inputs and attributes are those of an operator row have no converter of their own:
the row names them (`OpRow.onnx`). The others are in the files `convert_*.py`, one for each family;
those of ONNX Runtime's domain `com.microsoft` are in `contrib_*.py`.
"""

from __future__ import annotations

from blockwright.frontend.onnx import (
    contrib_attention,
    contrib_decoding,
    contrib_fused,
    contrib_moves,
    contrib_norms,
    contrib_quantized,
    contrib_weights,
    convert_control,
    convert_elementwise,
    convert_images,
    convert_made,
    convert_norms,
    convert_products,
    convert_quantized,
    convert_recurrent,
    convert_reductions,
    convert_resize,
    convert_selection,
    convert_shapes,
    convert_signal,
    convert_windows,
)
from blockwright.frontend.onnx.call import Converters
from blockwright.frontend.onnx.row_calls import add_rows
from blockwright.ops.table import OPERATORS

CONVERTERS = Converters()
for _family in (
    contrib_attention,
    contrib_decoding,
    contrib_fused,
    contrib_moves,
    contrib_norms,
    contrib_quantized,
    contrib_weights,
    convert_control,
    convert_elementwise,
    convert_images,
    convert_made,
    convert_norms,
    convert_products,
    convert_quantized,
    convert_recurrent,
    convert_reductions,
    convert_resize,
    convert_selection,
    convert_shapes,
    convert_signal,
    convert_windows,
):
    CONVERTERS.add(_family.TABLE)
add_rows(CONVERTERS, OPERATORS)
