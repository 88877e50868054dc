"""Images: BloodMNIST through a frozen encoder, a CNN on CIFAR-10, ResNet-20 on CIFAR-100."""

from __future__ import annotations

from functools import partial

from torch import nn

from benchmarks.reproduce.data import bloodmnist_features, cifar10_images, cifar100_images
from benchmarks.reproduce.experiment import Experiment
from benchmarks.reproduce.tabular import build_blocks
from giveaway.attacks.recipes import build_cnn, build_resnet
from giveaway.attacks.training import Training


def build_with_dropout(
    shape: tuple[int, ...], outputs: int, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 3
) -> nn.Sequential:
    """ResNet-20 unless told: three stages of three blocks; dropout of 0.3 before the head."""
    network = build_resnet(shape, outputs, widths, blocks)
    assert isinstance(network, nn.Sequential)
    return nn.Sequential(*network[:-1], nn.Dropout(0.3), network[-1])


_EXPERIMENTS = [
    Experiment(
        "bloodmnist_head",
        "BloodMNIST, linear head on a frozen encoder",
        bloodmnist_features,
        partial(build_blocks, hidden=()),
        Training(100, 512, "sgd", 1e-2, weight_decay=1e-6, momentum=0.9),
        models_at_once=200,
        head_only=True,
        differs=(
            "EfficientNet-Lite0 (1,280 features) stands in for DINOv2 ViT-S/14 (384)",
            "images rebuilt from the PBC collection, the split is not MedMNIST's; 8,000 of them as in the paper",
        ),
    ),
    Experiment(
        "cifar10_cnn",
        "CIFAR-10, CNN",
        cifar10_images,
        build_cnn,
        Training(25, 256, "adamw", 1e-3, weight_decay=5e-4, precision="bfloat16"),
        models_at_once=4,
        stack=False,
        whole_network=2,
        differs=(
            "the paper names three convolutional blocks and no widths: ours have 64, 128, 256 channels and 128 units",
            "whole network: two targets, Gauss–Newton curvature from 64 probes instead of the Hessian",
        ),
        build_small=partial(build_cnn, channels=(4, 4, 4)),
    ),
    Experiment(
        "cifar100_resnet20",
        "CIFAR-100, ResNet-20",
        cifar100_images,
        build_with_dropout,
        Training(50, 256, "sgd", 1e-3, weight_decay=5e-4, momentum=0.9, precision="bfloat16"),
        models_at_once=4,
        stack=False,
        differs=("learning rate, schedule and augmentation as printed: 0.001, constant, none",),
        build_small=partial(build_with_dropout, widths=(4, 4), blocks=1),
    ),
]
SETTINGS = {experiment.name: experiment.setting() for experiment in _EXPERIMENTS}
