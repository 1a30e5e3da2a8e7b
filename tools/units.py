"""Tiny transformers with weights set by hand, whose right attribution follows from algebra: what an
explanation must say is known before it is computed.

Every unit is a model with a softmax attention over its tokens, one input (1, tokens, features) in
double precision, a target, and an answer: which tokens must score 0, which must score above 0,
which must score the same, which must be in what proportion. The answers ask for no more than any
right explanation must give, whatever its scale. docs/units.md says which method gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Rows = Sequence[Sequence[float]]
EXACT = 1e-5


@dataclass(frozen=True)
class Answer:
    """What the tokens' scores must be; token numbers from 0.

    ``zero``: score 0. ``positive``: score above 0. ``negative``: score below 0, or 0 (for methods
    that are not signed). ``equal``: score the same. ``ratio``: tokens and numbers their scores must
    be in proportion to.
    """

    zero: tuple[int, ...] = ()
    positive: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    equal: tuple[int, ...] = ()
    ratio: tuple[tuple[int, float], ...] = ()

    def failures(self, scores: Tensor) -> list[str]:
        """Which of it ``scores``, (tokens,), do not satisfy, in words; empty if all of it holds, to
        1e-5 of the largest score's magnitude.

        Where the largest is below 1e-5 itself, all count as 0: inputs and outputs are of order
        1."""
        largest = float(scores.abs().max())
        size = largest if largest > EXACT else 1.0
        found = [
            f"token {i} scores {float(scores[i]) / size:.2g} of the largest, not 0"
            for i in self.zero
            if abs(float(scores[i])) > EXACT * size or not torch.isfinite(scores[i])
        ]
        found += [
            f"token {i} scores {float(scores[i]) / size:.2g} of the largest, not above 0"
            for i in self.positive
            if not float(scores[i]) > EXACT * size
        ]
        found += [
            f"token {i} scores {float(scores[i]) / size:.2g} of the largest, though it lowers y"
            for i in self.negative
            if not float(scores[i]) <= EXACT * size
        ]
        for i in self.equal[1:]:
            first, other = float(scores[self.equal[0]]), float(scores[i])
            if not abs(first - other) <= EXACT * size:
                found.append(
                    f"tokens {self.equal[0]} and {i} score {first / size:.2g} and "
                    f"{other / size:.2g} of the largest, not the same"
                )
        for (i, a), (j, b) in zip(self.ratio, self.ratio[1:], strict=False):
            if not abs(float(scores[i]) * b - float(scores[j]) * a) <= EXACT * size * max(
                abs(a), abs(b)
            ):
                found.append(
                    f"tokens {i} and {j} score {float(scores[i]) / size:.2g} and "
                    f"{float(scores[j]) / size:.2g} of the largest, not as {a:g} to {b:g}"
                )
        return found


@dataclass(frozen=True, eq=False)
class Unit:
    """A model, an input (1, tokens, features), a target (the class), what any right explanation
    must say of its tokens, and why, by algebra."""

    name: str
    model: nn.Module
    inputs: Tensor
    target: int
    answer: Answer
    why: str


class Block(nn.Module):
    """x + softmax(q kᵀ) v Wᵒ, one head: it reads one number from each token and writes the mean of
    them, as attention weighs it, into feature ``write`` of every token.

    The query is the same for every token (a bias, 60); ``key`` (features,) says which tokens are
    attended to (0: all alike), ``value`` (features,) what is read.
    """

    def __init__(
        self, value: Sequence[float], key: Sequence[float] | None = None, *, write: int = -1
    ) -> None:
        super().__init__()
        features = len(value)
        self.query = linear([[0.0] * features], [60.0])
        self.key, self.value = linear([key or [0.0] * features]), linear([value])
        self.out = linear([[float(i == write % features)] for i in range(features)])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, features) to the same."""
        attention = (self.query(x) @ self.key(x).transpose(-2, -1)).softmax(-1)
        mixed: Tensor = x + self.out(attention @ self.value(x))
        return mixed


class Pooled(nn.Module):
    """Blocks, one after the other, the mean over tokens, and a head."""

    def __init__(self, blocks: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*blocks), head

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, features) to (batch, classes)."""
        out: Tensor = self.head(self.blocks(x).mean(1))
        return out


def linear(weight: Rows, bias: Sequence[float] | None = None) -> nn.Linear:
    """A linear layer of this weight (out, in) and bias (out,)."""
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    _set(layer.weight, weight)
    if bias is not None:
        _set(layer.bias, bias)
    return layer


def _set(parameter: Tensor, values: Sequence[float] | Rows) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values))


def _unit(
    name: str, model: nn.Module, tokens: Rows, answer: Answer, why: str, target: int = 0
) -> Unit:
    return Unit(
        name,
        model.double().eval(),
        torch.tensor([tokens], dtype=torch.float64),
        target,
        answer,
        why,
    )


def units() -> tuple[Unit, ...]:
    """All of them, built anew. The last feature is what blocks write to and heads read; where it is
    0 in the input, skip connections carry nothing that is read."""
    mean, read = Block([1.0, 0.0, 0.0]), linear([[0.0, 0.0, 1.0]])
    total = Block([3.0, 0.0, 0.0])  # of three tokens, whose mean times 3 is their sum
    return (
        _unit(
            "mean",
            Pooled([mean], read),
            [[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 1.0, 0.0]],
            Answer(zero=(2,), positive=(0, 1, 3), ratio=((0, 3.0), (1, 1.0), (3, 2.0))),
            "Attention is uniform, so y = (3 + 1 + 0 + 2)/4: the function is linear and "
            "its terms are the scores.",
        ),
        _unit(
            "signed mean",
            Pooled([mean], read),
            [[3.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
            Answer(zero=(2,), positive=(0,), negative=(1,)),
            "As before with terms 3, −1 and 0: token 1 lowers y, so that it scores below "
            "0 or, where a method is not signed, 0.",
        ),
        _unit(
            "copy",
            Pooled([Block([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])], read),
            [[2.0, 0.0, 0.0], [2.0, 1.0, 0.0], [3.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
            Answer(zero=(0, 2, 3), positive=(1,)),
            "Feature 1 is a mark: the head attends to the marked token with weight 1 − "
            "3·e⁻⁶⁰ and copies its feature 0. No other token's value has a part in y.",
        ),
        _unit(
            "and",
            Pooled(
                [total],
                nn.Sequential(linear([[0.0, 0.0, 1.0]], [-1.0]), nn.ReLU(), linear([[1.0]])),
            ),
            [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
            Answer(zero=(2,), positive=(0, 1), equal=(0, 1)),
            "y = (a + b + c − 1)⁺ with a = b = 1 and c = 0: neither of the two does it "
            "alone, they are exchangeable, and token 2 adds nothing.",
        ),
        _unit(
            "or",
            Pooled(
                [total],
                nn.Sequential(
                    linear([[0.0, 0.0, 1.0]] * 2, [0.0, -1.0]), nn.ReLU(), linear([[1.0, -1.0]])
                ),
            ),
            [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
            Answer(zero=(2,), positive=(0, 1), equal=(0, 1)),
            "y = s⁺ − (s − 1)⁺ with s = a + b + c, a = b = 1 and c = 0: either is "
            "enough, so ∂y/∂a = ∂y/∂b = 0, and yet without both y falls to 0.",
        ),
        _unit(
            "two classes",
            Pooled(
                [Block([1.0, 0.0, 0.0, 0.0], write=2), Block([0.0, 1.0, 0.0, 0.0], write=3)],
                linear([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]),
            ),
            [[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]],
            Answer(zero=(1,), positive=(0, 2), equal=(0, 2)),
            "Block 1 reads feature 0 for class 0, block 2 feature 1 for class 1; asked "
            "for class 0, token 1 has nothing of it, and tokens 0 and 2 have the same.",
        ),
        _unit(
            "cancelling branches",
            Pooled(
                [Block([4.0, 0.0, 0.0], [0.0, 1.0, 0.0]), Block([-4.0, 0.0, 0.0], [0.0, 1.0, 0.0])],
                read,
            ),
            [[0.0, 0.0, 1.0], [2.0, 1.0, 0.0], [0.0, 0.0, 3.0]],
            Answer(zero=(1,), ratio=((0, 1.0), (2, 3.0))),
            "Both blocks attend to token 1; one adds 4 times its feature 0, the other "
            "takes it away. What is left came by the skip connection: y = (1 + 0 + 3)/3. "
            "Scores over attention leave out what skip connections alone carry, so that "
            "0 for every token is right, too.",
        ),
        _unit(
            "constant",
            Pooled([mean], linear([[0.0, 0.0, 0.0]], [1.0])),
            [[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
            Answer(zero=(0, 1, 2)),
            "The head's weights are 0 and its bias is 1: y = 1 whatever the tokens are.",
        ),
    )
