"""The two tasks that come with relprop: small trained models with known answers, on samples that
they have never seen."""

from __future__ import annotations

from relprop.demo.model import digit_scene_model
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.demo.reviews import Reviews
from relprop.demo.scene_source import DigitScenes
from relprop.error_boundary import guarded
from relprop.evaluation.image_task import ImageTask
from relprop.evaluation.text_task import Rationale, TextTask
from relprop.evaluation.words import TokenF1

SCENES_SEED, REVIEWS_SEED = 20_000_003, 30_000_001
CURVES = ("negative perturbation", "positive perturbation")


@guarded
def digit_scenes(n: int, seed: int = SCENES_SEED) -> ImageTask:
    """``n`` scenes of two held-out digits and the shipped ViT. The label is the first digit; the
    second is true, too, and no error of the model's."""
    return ImageTask(digit_scene_model(), DigitScenes(n, seed), (*CURVES, "segmentation"))


@guarded
def reviews(n: int, seed: int = REVIEWS_SEED) -> TextTask:
    """``n`` held-out film reviews and the shipped BERT. Reviews have 20 to 80 words, so token-F1 is
    at k = 2, 4, ..., 16, a fifth of the paper's."""
    rationale = Rationale(TokenF1(tuple(range(2, 17, 2))))
    measures = *CURVES, "AOPC", "LOdds", "Kendall τ", rationale, "Precision@20"
    source, tokenizer = Reviews(n, seed=seed), review_tokenizer()
    return TextTask(review_model(), source, measures, tokenizer=tokenizer)
