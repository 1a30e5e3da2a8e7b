"""Segmentation: does the map lie on the object? Pixel accuracy, mean IoU and mean average precision
against a mask, over a data set that need not fit memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.error_boundary import guarded
from relprop.errors import InputError
from relprop.evaluation.base import Interval, bootstrap, finite, needed
from relprop.explanation import Explanation

COLUMNS = (
    "correct",
    "labelled",
    "background_intersection",
    "foreground_intersection",
    "background_union",
    "foreground_union",
    "average_precision",
    "constant",
)
IGNORE = -1


@guarded
def upsampled(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps of patches, (batch, h, w), as maps of pixels, (batch, *size): bilinear between the
    patches' middles (``align_corners=False``)."""
    small = finite("maps", maps, "batch, h, w")[:, None]
    return F.interpolate(small, size=tuple(size), mode="bilinear", align_corners=False)[:, 0]


@guarded
@dataclass(frozen=True, eq=False)
class SegmentationResult:
    """The three numbers of a set of images, each in [0, 1], and ``table`` (images, 8), float64,
    whose columns are ``COLUMNS``."""

    table: Tensor

    @property
    def images(self) -> int:
        """How many images were counted."""
        return len(self.table)

    @property
    def constant_maps(self) -> int:
        """How many of the maps had one value everywhere: all background, average precision that of
        equal scores."""
        return int(self.table[:, 7].sum())

    @property
    def pixel_accuracy(self) -> float:
        """Correct pixels of all images over labelled pixels of all images."""
        return float(self.table[:, 0].sum() / self.table[:, 1].sum())

    @property
    def mean_iou(self) -> float:
        """The mean over background and foreground of intersections over unions, each summed over
        all images; a class that is nowhere, neither labelled nor found, counts as 0."""
        unions = self.table[:, 4:6].sum(0).clamp(min=1)
        return float((self.table[:, 2:4].sum(0) / unions).mean())

    @property
    def mean_average_precision(self) -> float:
        """The mean over images of the average precision."""
        return float(self.table[:, 6].mean())

    def intervals(self, draws: int = 2000, seed: int = 0) -> dict[str, Interval]:
        """95 % bootstrap intervals of the three, over images: of ratios of sums the sums are drawn
        anew."""

        def interval(name: str) -> Interval:
            return bootstrap(
                self.table, draws, seed, statistic=lambda t: getattr(SegmentationResult(t), name)
            )

        names = ("pixel_accuracy", "mean_average_precision", "mean_iou")
        return {name: interval(name) for name in names}


@guarded
@dataclass
class SegmentationTally:
    """The running count of a data set: ``update`` with batch after batch, ``compute`` at any time.
    Eight numbers per image are kept."""

    metric: Segmentation
    tables: list[Tensor] = field(default_factory=list)

    def update(self, maps: Explanation | Tensor, masks: Tensor) -> None:
        """Count a batch: see ``Segmentation.table``."""
        self.tables.append(self.metric.table(maps, masks))

    def compute(self) -> SegmentationResult:
        """The numbers of all images so far. Raises ``InputError`` if there are none."""
        if not self.tables:
            raise InputError("segmentation: no image was counted; call update(maps, masks) first")
        return SegmentationResult(torch.cat(self.tables))


@guarded
@dataclass(frozen=True)
class Segmentation:
    """Pixel accuracy, mIoU and mAP of a map as a segmentation of the object (Chefer et al. 2021,
    Tab. 2).

    Each map is min–max normalised to m ∈ [0, 1]; foreground is where m > mean(m), the image's own
    mean. Pixel accuracy and the two IoUs are ratios of sums over *all* images; mAP is the mean over
    images of the average precision of the scores [1 − m, m] against the one-hot mask. Pixels whose
    mask is −1 count in none, but their map values do count in minimum, maximum and mean. All
    arithmetic on a map is in its own precision (half: float32).

    >>> import torch
    >>> result = Segmentation()(torch.tensor([[[0.0, 1.0], [0.2, 0.9]]]), torch.tensor([[[0, 1], [0, -1]]]))
    >>> result.pixel_accuracy, result.mean_iou, result.mean_average_precision
    (1.0, 1.0, 1.0)
    """  # noqa: E501

    name: ClassVar[str] = "segmentation"
    higher_is_better: ClassVar[bool] = True
    protocol: ClassVar[str] = "paper-code"
    source: ClassVar[str] = (
        "Chefer, Gur & Wolf, CVPR 2021, Sec. 4 and Tab. 2; ImageNet-Segmentation "
        "(Guillaumin et al., IJCV 2014)"
    )
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper does not say how mAP is made of a map; as in the published code it is "
        "the average precision over both channels [1 − m, m] together.",
        "The paper does not say over what IoU and accuracy are taken; as in the "
        "published code they are ratios of sums over all images, not means of ratios.",
        "A constant map is min–max normalised to NaN by the published code, hence all "
        "background and scores of 0; the same is done here and counted (constant_maps).",
        "The F1 that the published code prints is a mean over rows of pixels, by a "
        "mistaken axis; it is not in the paper and not here.",
    )

    def start(self) -> SegmentationTally:
        """An empty count, to be updated batch by batch."""
        return SegmentationTally(self)

    def __call__(self, maps: Explanation | Tensor, masks: Tensor) -> SegmentationResult:
        """The numbers of one batch: see ``table``."""
        return SegmentationResult(self.table(maps, masks))

    def table(self, maps: Explanation | Tensor, masks: Tensor) -> Tensor:
        """(batch, 8), float64: the counts of each image (``COLUMNS``).

        ``maps`` (batch, H, W) or an explanation of images, whose ``heatmap`` is taken at the masks'
        size. ``masks`` (batch, H, W), integer or bool: 1 foreground, 0 background, −1 ignored.
        Raises ``InputError`` for sizes that differ, NaN, other labels, and a mask without a
        labelled pixel.
        """
        if masks.dim() != 3 or masks.is_floating_point():
            given = f"masks: shape {list(masks.shape)}, {masks.dtype}"
            raise InputError(f"{given}; integers (batch, H, W) are needed")
        if isinstance(maps, Explanation):
            maps = maps.heatmap(tuple(masks.shape[1:]))
        maps = finite("maps", maps, "batch, H, W").cpu()
        masks = masks.detach().cpu().to(torch.int16)
        _check_masks(maps, masks)
        rows = [_counts(values, mask) for values, mask in zip(maps, masks, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)


def _check_masks(maps: Tensor, masks: Tensor) -> None:
    if maps.shape != masks.shape:
        same = maps.shape[0] == masks.shape[0]
        then = ["relprop.evaluation.upsampled(maps, masks.shape[1:])   # maps of patches"]
        given = f"maps are {list(maps.shape)}, masks {list(masks.shape)}"
        fact = f"{given}: a mask for every map, of its size, is needed"
        raise InputError(fact, then=then if same else [])
    if ((masks < IGNORE) | (masks > 1)).any():
        given = f"masks: labels are {masks.unique().tolist()}"
        raise InputError(f"{given}; 1 (foreground), 0 (background) and −1 (ignored) are known")
    if (empty := (masks == IGNORE).flatten(1).all(1)).any():
        raise InputError(f"masks: no pixel of image {int(empty.int().argmax())} is labelled")


def _counts(values: Tensor, mask: Tensor) -> list[float]:
    """One image's row of the table: ``COLUMNS``."""
    span = values.max() - values.min()
    constant = bool(span == 0)
    m = torch.zeros_like(values) if constant else (values - values.min()) / span
    labelled, found = mask != IGNORE, m > m.mean()
    ours = [(found == c) & labelled for c in (0, 1)]
    theirs = [mask == c for c in (0, 1)]
    scores = torch.stack([torch.zeros_like(m) if constant else 1 - m, m])[:, labelled]
    truth = torch.stack(theirs)[:, labelled]
    average_precision = needed("sklearn.metrics").average_precision_score
    return [
        int((found == mask)[labelled].sum()),
        int(labelled.sum()),
        *(int((a & b).sum()) for a, b in zip(ours, theirs, strict=True)),
        *(int((a | b).sum()) for a, b in zip(ours, theirs, strict=True)),
        float(average_precision(truth.flatten().numpy(), scores.flatten().numpy())),
        float(constant),
    ]
