"""Architectures for images."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from fuzzing.models.architecture import (
    BATCHES,
    IMAGE_SIZES,
    TEXT,
    VISION,
    Architecture,
    Inputs,
    Sizes,
    from_config,
    images,
    tokens,
    vision,
)

_STAGES: dict[str, Any] = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
_RESNET: dict[str, Any] = {
    "embedding_size": 16,
    **_STAGES,
    "out_features": ["stage2", "stage3", "stage4"],
}


def _resnet() -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.ResNetConfig(**_RESNET)


def _detector(kind: str, class_: str, **values: Any) -> Architecture:
    def build() -> nn.Module:
        shared = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
        config = {"backbone_config": _resnet(), **shared, **values}
        return from_config(kind, class_, **config)()

    return Architecture(kind, "detection", build, images, *BATCHES)


_DETR: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 5,
}  # fmt: skip


def _captioned(sizes: Sizes) -> Inputs:
    return {**tokens({"batch": sizes["batch"], "length": 9}), **images(sizes)}


_TEXT_OF_CLIP = {**TEXT, "projection_dim": 16}


def _clip(kind: str, class_: str = "", **values: Any) -> Architecture:
    parts = {"text_config": _TEXT_OF_CLIP, "vision_config": VISION, "projection_dim": 16}
    build = from_config(kind, class_, **{**parts, **values})
    return Architecture(kind, "image and text", build, _captioned, *BATCHES)


def _video(sizes: Sizes) -> Inputs:
    return {"pixel_values": torch.randn(sizes["batch"], 4, 3, 32, 32)}


class DoubleConvolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Downsampling, upsampling by transposed convolution, skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = DoubleConvolution(3, 8), DoubleConvolution(8, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), DoubleConvolution(16, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        first = self.first(pixel_values)
        second = self.second(nn.functional.max_pool2d(first, 2))
        return self.head(self.last(torch.cat([first, self.up(second)], 1)))


class DenseBlock(nn.Module):
    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + k * growth), nn.ReLU(),
                nn.Conv2d(inputs + k * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(layers)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(
            DenseBlock(8, 3, 4), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2), DenseBlock(10, 3, 4)
        )
        self.head = nn.Linear(22, 10)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.blocks(nn.functional.max_pool2d(self.stem(pixel_values), 3, 2, 1))
        return self.head(x.mean((2, 3)))


class InceptionBlock(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, 8, 1)
        self.three = nn.Sequential(nn.Conv2d(inputs, 4, 1), nn.Conv2d(4, 8, (1, 3), padding=(0, 1)),
                                   nn.Conv2d(8, 8, (3, 1), padding=(1, 0)))  # fmt: skip
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(inputs, 8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.pooled(x)], 1)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), InceptionBlock(8), nn.MaxPool2d(3, 2), InceptionBlock(24)
        )
        self.head = nn.Linear(24, 10)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.layers(pixel_values), 1)
        return self.head(x.flatten(1))


class CrossStage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(3 * width // 2, width, 1)
        self.inner = nn.Sequential(
            nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.BatchNorm2d(width // 2), nn.SiLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.into(x).chunk(2, 1)
        return self.out(torch.cat([a, b, self.inner(b)], 1))


class Yolo(nn.Module):
    """A detector with one pyramid, whose head decodes boxes on grids made from the image's size."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.low, self.down = CrossStage(16), nn.Conv2d(16, 16, 3, 2, 1)
        self.high, self.mix = CrossStage(16), CrossStage(32)
        self.pools = nn.MaxPool2d(5, 1, 2)
        self.heads = nn.ModuleList([nn.Conv2d(32, 5 + classes, 1), nn.Conv2d(64, 5 + classes, 1)])

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        low = self.low(self.stem(pixel_values))
        high = self.high(self.down(low))
        once = self.pools(high)
        high = torch.cat([high, once, self.pools(once), self.pools(self.pools(once))], 1)
        up = nn.functional.interpolate(high[:, :16], scale_factor=2.0, mode="nearest")
        levels = [self.mix(torch.cat([low, up], 1)), high]
        boxes: list[torch.Tensor] = []
        for head, level, stride in zip(self.heads, levels, (4.0, 8.0), strict=True):
            found = head(level)
            rows, columns = torch.arange(found.shape[2]), torch.arange(found.shape[3])
            grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).to(found.dtype)
            place = (found[:, :2].sigmoid() * 2 - 0.5 + grid) * stride
            size = (found[:, 2:4].sigmoid() * 2) ** 2 * stride
            boxes.append(torch.cat([place, size, found[:, 4:].sigmoid()], 1).flatten(2))
        return torch.cat(boxes, 2).transpose(1, 2)


def _own(name: str, build: Any, family: str = "vision") -> Architecture:
    return Architecture(name, family, build, images, *IMAGE_SIZES)


CLASSIFIERS: tuple[Architecture, ...] = (
    vision("vit", **VISION),
    vision("deit", **VISION),
    vision("beit", use_relative_position_bias=True, **VISION),
    vision("swin", image_size=64, patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4],
           window_size=4),
    vision("swinv2", image_size=64, patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4],
           window_size=4),
    vision("convnext", sizes=IMAGE_SIZES, **_STAGES),
    vision("convnextv2", sizes=IMAGE_SIZES, **_STAGES),
    vision("dinov2", **VISION),
    vision("dinov3_vit", sizes=IMAGE_SIZES, **VISION),
    vision("resnet", sizes=IMAGE_SIZES, embedding_size=16, **_STAGES),
    vision("regnet", sizes=IMAGE_SIZES, embedding_size=16, **_STAGES, groups_width=8),
    vision("efficientnet", sizes=IMAGE_SIZES, image_size=64, width_coefficient=0.25,
           depth_coefficient=0.25, hidden_dim=320),
    vision("mobilenet_v1", sizes=IMAGE_SIZES, depth_multiplier=0.25),
    vision("mobilenet_v2", sizes=IMAGE_SIZES, depth_multiplier=0.25),
    vision("mobilevit", hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
           num_attention_heads=4, image_size=64),
    vision("mobilevitv2", width_multiplier=0.25, image_size=64),
    vision("poolformer", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    vision("pvt", image_size=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
           num_attention_heads=[1, 2, 2, 4]),
    vision("pvt_v2", image_size=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
           num_attention_heads=[1, 2, 2, 4]),
    vision("levit", image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4],
           depths=[1, 1, 1], key_dim=[8, 8, 8]),
    vision("cvt", embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3]),
    vision("bit", sizes=IMAGE_SIZES, embedding_size=16, **_STAGES, num_groups=4),
    vision("focalnet", image_size=64, embed_dim=16, depths=[1, 1], focal_levels=[2, 2],
           focal_windows=[3, 3]),
    vision("hiera", image_size=[64, 64], embed_dim=16, depths=[1, 1, 1], num_heads=[1, 2, 4],
           query_stride=[2, 2], num_query_pool=2),
    vision("siglip_vision_model", "SiglipVisionModel", **VISION),
    vision("clip_vision_model", "CLIPVisionModel", **VISION),
    vision("ijepa", **VISION),
    vision("vit_msn", **VISION),
    _own("u-net", UNet, "dense prediction"),
    _own("densenet", DenseNet),
    _own("inception", Inception),
    _own("yolo", Yolo, "detection"),
)  # fmt: skip

_SEGFORMER: dict[str, Any] = {
    "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 16,
}  # fmt: skip

_FOUR: dict[str, Any] = {**VISION, "num_hidden_layers": 4}

DENSE: tuple[Architecture, ...] = (
    vision("segformer", "SegformerForSemanticSegmentation", IMAGE_SIZES, **_SEGFORMER),
    vision("glpn", "GLPNForDepthEstimation", IMAGE_SIZES, **_SEGFORMER),
    vision("dpt", "DPTForDepthEstimation", **_FOUR, backbone_out_indices=[0, 1, 2, 3],
           neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, is_hybrid=False),
    Architecture("depth_anything", "dense prediction", from_config(
        "depth_anything", "DepthAnythingForDepthEstimation", patch_size=16,
        backbone_config={"model_type": "dinov2", **_FOUR, "out_indices": [1, 2, 3, 4],
                         "reshape_hidden_states": False},
        reassemble_hidden_size=32, neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16,
        head_hidden_size=16), images, *BATCHES),
    vision("beit", "BeitForSemanticSegmentation", name="beit (segmentation)",
           out_indices=[1, 2, 3, 4], **_FOUR),
    vision("mobilevit", "MobileViTForSemanticSegmentation", name="mobilevit (segmentation)",
           hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
           num_attention_heads=4, image_size=64),
    vision("swin2sr", image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
    vision("superpoint", "SuperPointForKeypointDetection", encoder_hidden_sizes=[8, 8, 16, 16],
           decoder_hidden_size=16, keypoint_decoder_dim=65, descriptor_decoder_dim=16),
)  # fmt: skip

_FRAMES: dict[str, Any] = {**VISION, "image_size": 32, "num_frames": 4}
_VILT: dict[str, Any] = {**TEXT, **VISION}
_DEFORMABLE: dict[str, Any] = {**_DETR, "decoder_layers": 2}
_YOLOS: dict[str, Any] = {**VISION, "image_size": [64, 64]}

DETECTORS: tuple[Architecture, ...] = (
    _detector("detr", "DetrForObjectDetection", **_DETR),
    _detector("conditional_detr", "ConditionalDetrForObjectDetection", **_DETR),
    _detector("deformable_detr", "DeformableDetrForObjectDetection",
              **_DEFORMABLE, num_feature_levels=3),
    vision("yolos", "YolosForObjectDetection", **_YOLOS,
           num_detection_tokens=5),
)  # fmt: skip


def _points(sizes: Sizes) -> Inputs:
    batch = sizes["batch"]
    return {
        **images(sizes),
        "input_points": 64 * torch.rand(batch, 1, 2, 2),
        "input_labels": torch.ones(batch, 1, 2, dtype=torch.int64),
    }


def _sam() -> nn.Module:
    encoder = {**VISION, "output_channels": 16, "global_attn_indexes": [1], "window_size": 2,
               "mlp_dim": 48, "num_pos_feats": 8}  # fmt: skip
    prompt = {"hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 4}
    mask = {"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "iou_head_hidden_dim": 16, "iou_head_depth": 2}  # fmt: skip
    config = {
        "vision_config": encoder,
        "prompt_encoder_config": prompt,
        "mask_decoder_config": mask,
    }
    return from_config("sam", "SamModel", **config)()


TOGETHER: tuple[Architecture, ...] = (
    _clip("clip"),
    _clip("siglip"),
    _clip("altclip", text_config={**_TEXT_OF_CLIP, "project_dim": 16}),
    _clip("chinese_clip"),
    Architecture("sam", "dense prediction", _sam, _points, *BATCHES),
    Architecture("vilt", "image and text", from_config(
        "vilt", **_VILT, max_image_length=-1), _captioned, *BATCHES),
    Architecture("videomae", "video", from_config(
        "videomae", **_FRAMES), _video, *BATCHES),
    Architecture("timesformer", "video", from_config(
        "timesformer", **_FRAMES), _video, *BATCHES),
    Architecture("vivit", "video", from_config(
        "vivit", **_FRAMES, tubelet_size=[2, 16, 16]),
        _video, *BATCHES),
)  # fmt: skip

ARCHITECTURES = (*CLASSIFIERS, *DENSE, *DETECTORS, *TOGETHER)
