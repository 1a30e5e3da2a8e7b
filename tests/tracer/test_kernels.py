"""Gradients are those of the formula, whatever the memory layout: PyTorch's own batch norm is wrong
for some (torch 2.15, CPU, one sample)."""

import pytest
import torch
from torch import nn

import relprop
from relprop.tracer.kernels import batch_norm


class Permuted(nn.Module):
    """Attention, then convolutions and batch norms on a permuted layout, then attention: the
    gradient at the first map passes the batch norms backward."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.first, self.second = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.norm, self.conv, self.normed = (
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.BatchNorm2d(16),
        )
        self.head = nn.Linear(16, 3)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = x + self.first(x, x, x)[0]
        y = (
            x.transpose(1, 2)
            .reshape(len(x), 16, 4, 4)
            .permute(0, 2, 3, 1)
            .contiguous()
            .permute(0, 3, 1, 2)
        )
        y = self.normed(self.conv(self.norm(y)))
        x = x + y.flatten(2).transpose(1, 2)
        return self.head((x + self.second(x, x, x)[0])[:, 0])


def test_one_sample_has_the_gradients_it_has_in_a_batch():
    torch.manual_seed(0)
    model, images = Permuted().double().eval(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    together, alone = (
        relprop.explain(model, images, 1, keep="blocks"),
        relprop.explain(model, images[:1], 1, keep="blocks"),
    )
    for a, b in zip(together.blocks, alone.blocks, strict=True):
        assert (a.gradient[:1] - b.gradient).abs().max() <= 1e-12 * a.gradient[:1].abs().max(), (
            a.path
        )


class Alone(Permuted):
    """One sample, whose batch norm reads a layout that a permuted tensor does not have; captured
    sample by sample."""

    def forward(self, image):
        image = image * 2 if bool(image.max() > 1e6) else image
        x = self.patch(image).flatten(2).transpose(1, 2)
        y = self.norm(x[0].contiguous().T.unflatten(1, (4, 4))[None])
        x = self.second.out_proj(y.contiguous().flatten(2)).transpose(1, 2)
        return self.head((x + self.first(x, x, x)[0])[:, 0])


def test_gradients_of_one_sample_are_compared_with_those_of_the_formula():
    torch.manual_seed(0)
    model, image = Alone().double().eval(), torch.randn(1, 3, 16, 16, dtype=torch.float64)
    assert "gradients equal" in relprop.explain(model, image, 1).facts["compared"]


@pytest.mark.parametrize(
    "strides", [(1024, 64, 8, 1), (1024, 1, 128, 16), (1, 1, 128, 16), (64, 1, 128, 16)], ids=str
)
@pytest.mark.parametrize("of_gradient", [(1024, 64, 8, 1), (1, 1, 128, 16)], ids=str)
def test_batch_norm_on_any_layout(strides, of_gradient):
    """The gradient is weight/√(variance + ε) times the one that arrives: written out, no kernel
    involved."""
    torch.manual_seed(1)

    def laid_out(strides):
        return (
            torch.empty(2048, dtype=torch.float64)
            .as_strided((1, 16, 8, 8), strides)
            .copy_(torch.randn(1, 16, 8, 8, dtype=torch.float64))
        )

    weight, bias, mean, variance = torch.rand(4, 16, dtype=torch.float64) + 0.5
    x, arriving = laid_out(strides).requires_grad_(), laid_out(of_gradient)
    y = batch_norm(x, weight, bias, mean, variance, False, 0.1, 1e-5, False)
    torch.testing.assert_close(
        y, torch.nn.functional.batch_norm(x.detach(), mean, variance, weight, bias)
    )
    torch.testing.assert_close(
        torch.autograd.grad(y, x, arriving)[0],
        arriving * (weight / (variance + 1e-5).sqrt()).reshape(1, 16, 1, 1),
    )
