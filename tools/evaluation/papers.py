"""The tables of the two papers: their rows under this library's names, their columns, and the
numbers that were published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relprop.evaluation.entries import Entry
from relprop.evaluation.evaluate import ATTCAT, CVPR_2021
from relprop.runner.question import Question

OURS = "transformer_attribution"
ABLATIONS = tuple(
    Entry(name, Question(OURS, options))
    for name, options in (
        ("without ∇A", {"use_gradient": False}),
        ("block nearest the output", {"layers": [-1]}),
        ("block B−1", {"layers": [1]}),
    )
)
FURTHER = (
    "gae",
    "attention_norm",
    "gradcam_features",
    "attnlrp",
    "cp_lrp",
    "epsilon_lrp",
    "lrp_gamma",
    "input_gradient",
    "gradient_x_input",
)
BALANCED, POSITIVE = {"gradient": "balanced"}, {"part": "positive"}
#: What a balanced gradient and the positive part make of methods, each alone and both.
CHANGED = tuple(
    Entry(f"{method}, {said}", Question(method, options))
    for said, options, methods in (
        ("positive", POSITIVE, ("cat", "attcat")),
        ("balanced", BALANCED, (OURS, "gae", "cat", "attcat", "gradient_x_input")),
        ("balanced, positive", BALANCED | POSITIVE, ("cat", "attcat")),
    )
    for method in methods
)
#: Rows whose differences are told, the first less the second; of attcat they are as of cat.
DIFFERENCES = (
    ("gae, balanced", "gae"),
    ("cat, positive", "cat"),
    ("cat, balanced", "cat"),
    ("cat, balanced, positive", "cat, balanced"),
    ("cat, balanced, positive", OURS),
    ("gradient_x_input, balanced", "gradient_x_input"),
    ("lrp_gamma", "attnlrp"),
    ("lrp_gamma", OURS),
    ("gae, balanced", OURS),
)
STEPS = 20  # of integrated gradients: half of Captum's, the most expensive row even so
TEXT_ROWS: tuple[Any, ...] = (
    *dict.fromkeys((*CVPR_2021, *ATTCAT, *FURTHER)),
    Entry("integrated_gradients", Question("integrated_gradients", {"n_steps": STEPS})),
    *CHANGED,
)
IMAGE_ROWS: tuple[Any, ...] = (*TEXT_ROWS, *ABLATIONS)


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper: ``rows`` and ``columns`` by their names here; ``published``: by (row,
    column); ``transposed``: methods are its columns."""

    key: str
    title: str
    task: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    published_on: str
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)
    transposed: bool = False


def _grid(
    rows: tuple[str, ...], columns: Mapping[str, tuple[float | None, ...]]
) -> dict[tuple[str, str], float]:
    return {
        (row, column): value
        for column, values in columns.items()
        for row, value in zip(rows, values, strict=True)
        if value is not None
    }


TABLES = (
    PaperTable(
        "cvpr-table-1",
        "Chefer et al. 2021, Table 1: perturbation AUC (%)",
        "digit_scenes",
        CVPR_2021,
        tuple(
            f"{order} perturbation: {explained}"
            for order in ("negative", "positive")
            for explained in ("predicted", "target")
        ),
        "ViT-B/16, ImageNet-val",
        _grid(
            CVPR_2021,
            {
                "negative perturbation: predicted": (53.1, 45.55, 41.52, 43.49, 50.49, 54.16),
                "negative perturbation: target": (None, None, 42.02, 43.49, 50.49, 55.04),
                "positive perturbation: predicted": (20.05, 23.99, 34.06, 41.94, 19.64, 17.03),
                "positive perturbation: target": (None, None, 33.56, 41.93, 19.64, 16.04),
            },
        ),
        True,
    ),
    PaperTable(
        "cvpr-table-2",
        "Chefer et al. 2021, Table 2: segmentation (%)",
        "digit_scenes",
        CVPR_2021,
        ("segmentation: pixel accuracy", "segmentation: mAP", "segmentation: mIoU"),
        "ViT-B/16, ImageNet-Segmentation",
        _grid(
            CVPR_2021,
            {
                "segmentation: pixel accuracy": (73.54, 67.84, 64.44, 51.09, 76.31, 79.70),
                "segmentation: mAP": (84.76, 80.24, 71.60, 55.68, 84.67, 86.03),
                "segmentation: mIoU": (55.42, 46.37, 40.82, 32.89, 57.94, 61.95),
            },
        ),
        True,
    ),
    PaperTable(
        "cvpr-table-3",
        "Chefer et al. 2021, Table 3: variants of the method (%)",
        "digit_scenes",
        (*(e.name for e in ABLATIONS), OURS),
        (
            "segmentation: pixel accuracy",
            "segmentation: mAP",
            "segmentation: mIoU",
            "positive perturbation: predicted",
            "negative perturbation: predicted",
        ),
        "ViT-B/16, ImageNet",
        _grid(
            (*(e.name for e in ABLATIONS), OURS),
            {
                "segmentation: pixel accuracy": (77.66, 78.32, 60.30, 79.70),
                "segmentation: mAP": (85.66, 85.25, 73.63, 86.03),
                "segmentation: mIoU": (59.88, 59.93, 39.06, 61.95),
                "positive perturbation: predicted": (18.23, 18.01, 27.33, 17.03),
                "negative perturbation: predicted": (52.88, 52.43, 37.42, 54.16),
            },
        ),
    ),
    PaperTable(
        "cvpr-figure-4",
        "Chefer et al. 2021, Figure 4: token-F1 (%) of the k best words",
        "reviews",
        CVPR_2021,
        ("token-F1: mean over k",),
        "BERT, ERASER Movie Reviews: a picture, no numbers",
        transposed=True,
    ),
    PaperTable(
        "attcat-table-1",
        "Qiang et al. 2022 (AttCAT), Table 1: AOPC and LOdds",
        "reviews",
        ATTCAT,
        ("AOPC", "LOdds"),
        "BERT, SST-2",
        _grid(
            ATTCAT,
            {
                "AOPC": (0.331, 0.286, 0.335, 0.351, 0.341, 0.354, 0.352, 0.371),
                "LOdds": (-0.885, -0.641, -0.252, -0.603, -0.922, -1.038, -1.115, -1.319),
            },
        ),
    ),
    PaperTable(
        "attcat-table-2",
        "Qiang et al. 2022 (AttCAT), Table 2: Kendall's τ between classes",
        "reviews",
        ATTCAT[2:],
        ("Kendall τ",),
        "BERT, SST-2",
        _grid(ATTCAT[2:], {"Kendall τ": (0.150, 0.116, 0.955, 0.336, 0.101, 0.018)}),
    ),
)
