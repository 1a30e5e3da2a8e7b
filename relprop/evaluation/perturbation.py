"""Perturbation: how fast accuracy falls when what the map calls important (or unimportant) is
removed, of images, of texts, and of any other floating-point input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, OtherClassWarning, warn
from relprop.evaluation.base import (
    answering,
    chosen,
    finite,
    in_range,
    labels_for,
    logits_of,
    place_of,
    ranked,
    rankings,
    without,
)
from relprop.evaluation.positions import map_of
from relprop.evaluation.texts import text_of
from relprop.explanation import Explanation

STEPS = 10  # tenths removed: 0, 1, ..., 9
PROTOCOLS = ("paper-code", "paper")


@guarded
@dataclass(frozen=True, eq=False)
class PerturbationCurve:
    """Hits of the model at each share removed: ``hits`` (batch, 10), 1 or 0 after 0, 10,
    ..., 90 %; NaN of samples whose map ranks nothing, which are left out. The area is taken from
    the share ``first``/10 on."""

    hits: Tensor
    first: int

    @property
    def accuracy(self) -> Tensor:
        """(10,), float64: top-1 accuracy after 0, 10, ..., 90 % were removed."""
        return self.hits.double().nanmean(0)

    @property
    def values(self) -> Tensor:
        """(batch,), float64: each sample's own area, in percent; their mean is ``auc``, for
        ``bootstrap``."""
        return 100 * torch.trapezoid(self.hits.double()[:, self.first :], dx=1 / STEPS)

    @property
    def auc(self) -> float:
        """100 · the area under ``accuracy`` by the trapezoid rule."""
        return float(self.values.nanmean())


@guarded
def joined(curves: Sequence[PerturbationCurve]) -> PerturbationCurve:
    """The perturbation curves of several batches as one of all their samples. Raises ``InputError``
    for an empty list, or curves of different protocols."""
    if (protocols := len({c.first for c in curves})) != 1:
        given = f"{len(curves)} curves of {protocols} protocols"
        raise InputError(f"{given}: curves of one protocol are needed")
    return PerturbationCurve(torch.cat([c.hits for c in curves]), curves[0].first)


@dataclass(frozen=True)
class _Perturbation:
    """What images and texts share: the options, and what they mean."""

    order: str = "positive"
    explained: str = "predicted"
    protocol: str = "paper-code"

    of: ClassVar[str]
    source: ClassVar[str] = "Chefer, Gur & Wolf, CVPR 2021, Sec. 4 and Tab. 1"

    def __post_init__(self) -> None:
        chosen("order", self.order, ("positive", "negative"))
        chosen("explained", self.explained, ("predicted", "target"))
        chosen("protocol", self.protocol, PROTOCOLS)

    @property
    def name(self) -> str:
        """With the order of removal and the explained class."""
        return f"{self.order} perturbation AUC of {self.of}, {self.explained} class"

    @property
    def higher_is_better(self) -> bool:
        """Accuracy should last when what is unimportant goes (negative), and fall when what is
        important goes (positive)."""
        return self.order == "negative"

    @property
    def first(self) -> int:
        """The first tenth of the area: 0, with the unperturbed point, or 1 in
        ``protocol="paper"``."""
        return 1 if self.protocol == "paper" else 0

    def _measured(
        self,
        model: Any,
        maps: Any,
        labels: Any,
        scores: Tensor,
        answer: Callable[[Tensor, Tensor], Tensor],
        batch_size: int,
        *,
        content: Tensor | None = None,
        others: Sequence[Sequence[int]] = (),
    ) -> PerturbationCurve:
        """Every sample's hits at every tenth. ``scores`` (batch, ...): a number for each position
        that may go, all of them or those of the ``content``. ``answer``: the logits of some samples
        without what is gone, a bool for each position; tenths of one sample and of several share a
        forward pass."""
        truth, flat = labels_for(labels, len(scores)), scores.flatten(1)
        if batch_size < 1:
            raise OptionError(f"batch_size={batch_size}: at least 1")
        if others and len(others) != len(truth):
            raise InputError(f"others of {len(others)} samples, labels of {len(truth)}")
        removable = torch.ones_like(flat, dtype=torch.bool) if content is None else content
        order = ranked(flat if self.order == "positive" else -flat)
        # in the order of removal, what may go only: the n-th of it, counted from 0
        kept = removable.gather(1, order)
        place = torch.empty_like(order).scatter_(1, order, kept.cumsum(1) - 1)
        count = removable.sum(1, keepdim=True)
        every = torch.arange(len(truth) * STEPS)
        predicted = list[Tensor]()
        with answering(model):
            for some in every.split(batch_size):
                samples, removed = some // STEPS, some[:, None] % STEPS
                gone = removable[samples] & (place[samples] < count[samples] * removed // STEPS)
                logits = answer(samples, gone.view(-1, *scores.shape[1:]))
                in_range(truth, logits.shape[1])
                left_out = [others[i] for i in samples.tolist()] if others else ()
                predicted.append(without(logits, left_out).argmax(1))
        found = torch.cat(predicted).view(-1, STEPS)
        self._check_explained(maps, truth, found[:, 0])
        hits = (found == truth[:, None]).double()
        own = (values[keep] for values, keep in zip(flat, removable, strict=True))
        hits[~rankings(self.name, own)] = torch.nan
        return PerturbationCurve(hits, self.first)

    def _check_explained(self, maps: Any, labels: Tensor, predicted: Tensor) -> None:
        """That an explanation explains the class this metric is named for; of plain tensors nothing
        is known."""
        if not isinstance(maps, Explanation) or not all(isinstance(t, int) for t in maps.target):
            return
        wanted = (labels if self.explained == "target" else predicted).tolist()
        other = [i for i, target in enumerate(maps.target) if target != wanted[i]]
        if other and self.explained == "target":
            at = other[0]
            fact = f"explained='target': sample {at} is of class {wanted[at]}"
            raise InputError(f"{fact}, its explanation of {maps.target[at]!r}")
        if other:
            fact = f"explained='predicted': {len(other)} explanations are not of the class"
            first = f"the first of them of sample {other[0]}"
            warn(OtherClassWarning(f"{fact} the model predicts, {first}"))


@guarded
@dataclass(frozen=True)
class ImagePerturbation(_Perturbation):
    """Perturbation AUC of images (Chefer et al. 2021, Tab. 1): pixels go to black, before
    normalisation, in order of the map.

    For 10, 20, ..., 90 % the pixels of highest (``order="positive"``) or lowest (``"negative"``)
    value are set to 0 in all channels of the image in [0, 1], the image is normalised and
    classified; a hit is the true label at top 1. The area is over [0, 0.9] with the unperturbed
    image (``paper-code``), or over [0.1, 0.9] (``paper``). ``explained``: of which class the maps
    are, predicted or target; it is part of the metric's name, the label is always the true one.
    """

    of: ClassVar[str] = "images"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper's text removes 10 % to 90 %; its numbers, by the author's word, "
        "include the unperturbed accuracy at 0 (paper-code, the default).",
        "Of equal map values the earlier pixel, row by row, is removed first; the "
        "published code leaves it to the sorting of the device.",
        "A data set with several true classes per image: the others are left out of the "
        "choice (others=); the paper has one label per image.",
        "k % of n pixels is ⌊kn/100⌋ exactly; the published code multiplies floats and "
        "may remove one pixel less at 70 % where n is a multiple of 10.",
    )

    def __call__(
        self,
        model: Any,
        images: Tensor,
        maps: Explanation | Tensor,
        labels: Any,
        *,
        normalize: Callable[[Tensor], Tensor] | None = None,
        others: Sequence[Sequence[int]] = (),
        batch_size: int = 64,
    ) -> PerturbationCurve:
        """The curve of a batch. Curves of several batches are put together by ``joined``.

        ``model``: a module or function of normalised images that returns logits (batch, classes) or
        an object with ``logits``; a module runs as in ``eval()``. ``images`` (batch, C, H, W) in
        [0, 1], not normalised; ``normalize`` what the model needs done to them. ``maps`` (batch, H,
        W), or an explanation of images; ``labels`` (batch,) the true classes. ``others``: for each
        image further classes that are true of it, which the model is not asked to choose.
        ``batch_size``: perturbed images per forward pass, of which each image has ten. Raises
        ``InputError``.
        """
        heat = _heat(images, maps)
        if normalize is None:
            fact = "normalize= is missing: pixels go to black before the model's normalisation"
            then = [
                "normalize=lambda images: (images - mean) / std   # your model's own numbers",
                "normalize=lambda images: images   # if the model takes pictures in [0, 1]",
            ]
            raise OptionError(fact, then=then)
        answer = _answer(model, images, torch.zeros(()), normalize)
        return self._measured(model, maps, labels, heat[:, None], answer, batch_size, others=others)


def _answer(
    model: Any, inputs: Tensor, fill: Tensor, ready: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The logits of some inputs, on the model's device, in which what is gone is ``fill``, made
    ``ready`` for the model."""
    device, dtype = place_of(model, inputs)

    def answer(at: Tensor, gone: Tensor) -> Tensor:
        given = inputs[at.to(inputs.device)].detach().to(device, dtype)
        left = torch.where(gone.to(device), fill.to(given), given)
        return logits_of(model, left if ready is None else ready(left))

    return answer


@guarded
@dataclass(frozen=True)
class InputPerturbation(_Perturbation):
    """Perturbation AUC of any floating-point input: series, recordings, tables, embeddings.

    As for images, with positions in place of pixels; all channels of a position go together, to
    ``removal``: a number, or one for each channel or feature (what broadcasts to a sample). 0 is
    the mean of inputs that were standardised.
    """

    removal: float | Tensor = 0.0

    of: ClassVar[str] = "inputs"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper perturbs images only; the order, the shares and the area are those of images.",
        "The score of a token is spread evenly over the positions it was made from.",
        "Of equal scores the earlier position is removed first.",
    )

    def __call__(
        self,
        model: Any,
        inputs: Tensor,
        maps: Explanation | Tensor,
        labels: Any,
        *,
        others: Sequence[Sequence[int]] = (),
        batch_size: int = 64,
    ) -> PerturbationCurve:
        """The curve of a batch.

        ``inputs`` (batch, ...), floating point, as the model takes them. ``maps``: an explanation,
        or a tensor of the inputs' shape, with 1 along the axes whose numbers go together: (batch,
        time, 1). The rest as for images. Raises ``InputError``.
        """
        heat, fill = map_of(inputs, maps).cpu(), torch.as_tensor(self.removal)
        try:
            torch.broadcast_to(fill, inputs.shape[1:])
        except RuntimeError:
            fact = f"removal has the shape {list(fill.shape)}, a sample {list(inputs.shape[1:])}"
            raise OptionError(f"{fact}: a number, or what broadcasts to a sample") from None
        answer = _answer(model, inputs, fill)
        return self._measured(model, maps, labels, heat, answer, batch_size, others=others)


def _heat(images: Tensor, maps: Explanation | Tensor) -> Tensor:
    """A number for every pixel of images in [0, 1], on the CPU. Raises ``InputError``."""
    if images.dim() != 4 or not images.is_floating_point() or not len(images):
        given = f"images: shape {list(images.shape)}, {images.dtype}"
        raise InputError(f"{given}; floating point (batch, C, H, W) is needed")
    if not ((images >= 0) & (images <= 1)).all():
        given = f"images: values from {float(images.min()):.3g} to {float(images.max()):.3g}"
        fact = f"{given}; [0, 1] is needed, before normalisation"
        raise InputError(fact, then=["normalize=   # what turns them into the model's input"])
    size = images.shape[2:]
    found = maps.heatmap(tuple(size)) if isinstance(maps, Explanation) else maps
    heat = finite("maps", found, "batch, H, W").cpu()
    if heat.shape != (len(images), *size):
        given = f"maps are {list(heat.shape)}, images {list(images.shape)}"
        raise InputError(f"{given}: a map for every image, of its height and width, is needed")
    return heat


@guarded
@dataclass(frozen=True)
class TextPerturbation(_Perturbation):
    """Perturbation AUC of texts: tokens in place of pixels; special tokens and padding are never
    removed.

    ``removal``: the id that takes a removed token's place (that of [MASK] or [PAD], say), its
    attention mask left at 1; or ``"mask"``: the token stays and the attention mask goes to 0. Of a
    text's n content tokens ⌊kn/100⌋ are removed at k %. The rest as for images.
    """

    removal: int | str = "mask"

    of: ClassVar[str] = "texts"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper perturbs images only; of texts the order, the shares and the area are "
        "those of images.",
        "The area includes the unperturbed accuracy at 0 (paper-code, the default) or "
        "starts at 10 % (paper).",
        "Of equal scores the earlier token is removed first.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.removal != "mask" and (isinstance(self.removal, (str, bool)) or self.removal < 0):
            raise OptionError(f"removal={self.removal!r}: the id of a token, or 'mask'")

    def __call__(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        scores: Explanation | Tensor,
        labels: Any,
        *,
        content: Any = None,
        batch_size: int = 64,
    ) -> PerturbationCurve:
        """The curve of a batch.

        ``inputs``: ``input_ids`` (batch, tokens), ``attention_mask`` and whatever else the model
        takes by name, one row per sample. ``scores`` (batch, tokens), or an explanation of the
        text. ``content`` (batch, tokens): which tokens may be removed; an explanation knows. Raises
        ``InputError``.
        """
        ids, values, removable = text_of(inputs, scores, content)
        if self.removal == "mask" and "attention_mask" not in inputs:
            raise InputError("removal='mask' needs an attention_mask among the inputs")
        device, _ = place_of(model, ids)
        changed = "attention_mask" if self.removal == "mask" else "input_ids"
        fill = 0 if isinstance(self.removal, str) else self.removal

        def answer(at: Tensor, gone: Tensor) -> Tensor:
            named = {name: value[at.to(value.device)].to(device) for name, value in inputs.items()}
            named[changed] = named[changed].masked_fill(gone.to(device), fill)
            return logits_of(model, **named)

        return self._measured(model, scores, labels, values, answer, batch_size, content=removable)
