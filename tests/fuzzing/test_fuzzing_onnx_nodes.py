"""A sample of the node tests of the ONNX package; `python -m fuzzing.onnx_nodes` runs them all."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

pytest.importorskip("onnx")

from fuzzing.onnx_nodes.judge import judge, out_of_scope

COMPILED = """
add_bcast compress_0 resize_upsample_sizes_cubic attention_4d_gqa
averagepool_2d_ceil softmax_axis_1 lstm_with_peepholes quantizelinear_axis scatternd_add
slice_neg_steps
""".split()
INTERPRETED = """
argmax_negative_axis_keepdims_random_select_last_index bitshift_left_uint16 bitwise_and_i32_2d
cast_FLOAT16_to_FLOAT celu clip_default_max conv_with_strides_and_asymmetric_padding
convtranspose_output_shape cumsum_1d_reverse_exclusive depthtospace_crd_mode_example
div_int32_trunc einsum_batch_diagonal expand_dim_unchanged flatten_negative_axis4
gather_elements_negative_indices gathernd_example_int32_batch_dim1 gemm_all_attributes
group_normalization_epsilon hardmax_axis_1 isinf_negative layer_normalization_3d_axis1_epsilon
logsoftmax_large_number lrn matmulinteger maxpool_2d_same_upper mod_mixed_sign_int32 mvn
nllloss_NCd1d2_reduction_mean onehot_negative_indices pow_types_int64_float32 qlinearconv
reduce_log_sum_exp_negative_axes_keepdims_random reflect_pad reversesequence_batch
rms_normalization_2d_axis1 scan9_sum split_variable_parts_2d_opset18 tile top_k_negative_axis
tril_neg unsqueeze_two_axes where_example
gridsample_bicubic nonmaxsuppression_two_classes roialign_mode_max
maxunpool_export_with_output_shape maxpool_with_argmax_2d_precomputed_strides
deform_conv_with_mask_bias stft_with_window dft_irfft cast_FLOAT_to_FLOAT4E2M1
cast_e8m0_FLOAT_to_FLOAT8E8M0 cast_UINT2_to_FLOAT16 bitcast_bool_to_uint8
reshape_zero_and_negative_dim unique_not_sorted_without_axis melweightmatrix affine_grid_3d
""".split()


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fuzzing.onnx_nodes.collect import collect

        return {test.name: test for test in collect()}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    record = judge(cases()[f"test_{name}"])
    assert record.what == "pass", record


@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted(name: str) -> None:
    record = judge(cases()[f"test_{name}"], interpreted=True)
    assert record.what == "pass", record


def test_scope() -> None:
    outside = [name for name, test in cases().items() if out_of_scope(test.model)]
    assert len(outside) < 0.06 * len(cases())
    assert "test_adagrad" in outside
