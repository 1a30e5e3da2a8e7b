"""Segmentation: the authors' numbers, cases by hand, and the same counts however the images
come."""

import numpy as np
import pytest
import torch

import relprop
from relprop.errors import InputError
from relprop.evaluation import Metric, Segmentation, upsampled
from tests.common.goldens import Goldens
from tests.common.sizes import digits

EXACT = 1e-9
#: Interpolated in float32, pixels change places by the last bit on another processor.
RANKED = 1e-6
PER_IMAGE = "per_image(correct,labeled,inter_bg,inter_fg,union_bg,union_fg,ap,f1_rowmean)"


def golden_case(case):
    g = Goldens("metrics")
    masks = torch.from_numpy(np.unpackbits(g.arrays["seg.labels"], axis=-1)).long()
    table, summary = g[f"seg.{case}.{PER_IMAGE}"], g[f"seg.{case}.summary(pixAcc,mIoU,mAP,mF1)"]
    return upsampled(g["seg.maps14"], (224, 224))[: len(table)], masks[: len(table)], table, summary


def ignoring(masks, labelled):
    """The golden ``ignore`` says how many pixels are labelled, not which: whole rows from the top
    of the second image."""
    missing = 224 * 224 - labelled.long()
    masks = masks.clone()
    for mask, count in zip(masks, missing.tolist(), strict=True):
        mask.view(-1)[:count] = -1
    return masks


@pytest.mark.parametrize("case", ["three", "with_constant_map", "ignore"])
def test_the_authors_numbers(case):
    maps, masks, table, summary = golden_case(case)
    if case == "ignore":
        masks = ignoring(masks, table[:, 1])
    found = Segmentation()(maps, masks)
    torch.testing.assert_close(found.table[:, :6], table[:, :6], rtol=EXACT, atol=0)
    torch.testing.assert_close(found.table[:, 6], table[:, 6], rtol=RANKED, atol=0)
    assert found.pixel_accuracy == pytest.approx(float(summary[0]), rel=EXACT)
    assert found.mean_iou == pytest.approx(float(summary[1]), rel=EXACT)
    assert found.mean_average_precision == pytest.approx(float(summary[2]), rel=RANKED)


def test_by_hand():
    """4 pixels a map. First: mean 0.5, so 1 and 0.6 are found where 1 and 0.4 should be. Second:
    the pixel to ignore takes part in min and max."""
    maps = torch.tensor([[[1.0, 0.6], [0.4, 0.0]], [[8.0, 2.0], [0.0, 2.0]]], dtype=torch.float64)
    masks = torch.tensor([[[1, 0], [1, 0]], [[-1, 1], [0, 1]]])
    found = Segmentation()(maps, masks)
    assert found.table[:, :6].tolist() == [[2, 4, 1, 1, 3, 3], [1, 3, 1, 0, 3, 2]]
    assert found.pixel_accuracy == 3 / 7
    assert found.mean_iou == pytest.approx((2 / 6 + 1 / 5) / 2, rel=EXACT)
    # scores [1−m, m] = [0, .4, .6, 1 | 1, .6, .4, 0], truth [0, 1, 0, 1 | 1, 0, 1, 0]: of the 2 at
    # 1.0, 2 are true; of the 4 down to 0.6, 2; of the 6 down to 0.4, 4
    first = 2 / 4 * 2 / 2 + 2 / 4 * 4 / 6
    # scores [.75, 1, .75 | .25, 0, .25], truth [0, 1, 0 | 1, 0, 1]: 1 of 1, then 1 of 3, then 3 of
    # 5
    second = 1 / 3 * 1 + 2 / 3 * 3 / 5
    assert found.mean_average_precision == pytest.approx((first + second) / 2, rel=EXACT)
    assert (
        found.constant_maps == 0
        and Segmentation()(torch.ones(1, 2, 2), masks[:1]).constant_maps == 1
    )


def test_the_same_numbers_whatever_the_batches():
    maps, masks, *_ = golden_case("with_constant_map")
    tally = Segmentation().start()
    for i in range(4):
        tally.update(maps[i : i + 1], masks[i : i + 1])
    assert torch.equal(tally.compute().table, Segmentation()(maps, masks).table)
    swapped = Segmentation()(maps.flip(0), masks.flip(0))
    assert (
        torch.equal(swapped.table.flip(0), tally.compute().table)
        and swapped.mean_iou == tally.compute().mean_iou
    )


def test_of_an_explanation():

    e = relprop.explain(digits(), torch.rand(2, 1, 32, 32), target=3)
    masks = (torch.rand(2, 64, 64) > 0.5).int()
    assert torch.equal(
        Segmentation()(e, masks).table, Segmentation()(e.heatmap((64, 64)), masks).table
    )


def test_intervals():
    maps, masks, *_ = golden_case("three")
    found = Segmentation()(maps, masks)
    for interval, value in zip(
        found.intervals(draws=200).values(),
        (found.pixel_accuracy, found.mean_average_precision, found.mean_iou),
        strict=True,
    ):
        assert (
            interval.mean == value
            and interval.low < value < interval.high
            and interval.samples == 3
        )


MASK = torch.zeros(1, 4, 4, dtype=torch.long)
WRONG = {
    "sizes": (
        torch.rand(1, 2, 2),
        MASK,
        r"maps are \[1, 2, 2\], masks \[1, 4, 4\](.|\n)*upsampled",
    ),
    "counts": (torch.rand(2, 4, 4), MASK, r"maps are \[2, 4, 4\], masks \[1, 4, 4\]"),
    "NaN": (
        torch.full((1, 4, 4), torch.nan),
        MASK,
        "maps: 16 values are NaN or infinite, the first of them in sample 0",
    ),
    "label": (torch.rand(1, 4, 4), MASK + 2, r"masks: labels are \[2\]"),
    "nothing labelled": (torch.rand(1, 4, 4), MASK - 1, "no pixel of image 0 is labelled"),
    "axes": (torch.rand(4, 4), MASK, r"maps: shape \[4, 4\], \(batch, H, W\)"),
    "float masks": (torch.rand(1, 4, 4), MASK.float(), "masks: .*integers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    maps, masks, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        Segmentation()(maps, masks)


def test_nothing_counted():
    with pytest.raises(InputError, match="no image was counted"):
        Segmentation().start().compute()


def test_what_it_says_of_itself():
    metric = Segmentation()
    assert (
        isinstance(metric, Metric)
        and metric.higher_is_better
        and all(s.endswith(".") for s in metric.deviations)
    )
