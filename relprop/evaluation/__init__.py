"""Is the explanation right? Metrics of explanations, as published, with the places named where
paper and published code differ; and tables of methods.

``docs/evaluation-metrics.md`` has the definitions, ``docs/evaluation.md`` the tables. Needs
``relprop[evaluation]`` (SciPy, scikit-learn).
"""

from relprop.evaluation.base import Interval, Metric, bootstrap
from relprop.evaluation.citing import LinearDatamodelingScore, TopKDrop
from relprop.evaluation.confidence import KendallConfidence
from relprop.evaluation.entries import Entry
from relprop.evaluation.evaluate import evaluate
from relprop.evaluation.faithfulness import AOPC, FaithfulnessCurve, LOdds
from relprop.evaluation.image_task import ImageTask
from relprop.evaluation.measures import (
    Batch,
    ClassCorrelation,
    ImageCurve,
    Maps,
    Measure,
    OfLabel,
    Randomisation,
    SegmentationCounts,
    Statistic,
    Unfaithful,
    Unstable,
    mean_of,
)
from relprop.evaluation.perturbation import (
    ImagePerturbation,
    InputPerturbation,
    PerturbationCurve,
    TextPerturbation,
    joined,
)
from relprop.evaluation.robustness import Infidelity, MaxSensitivity
from relprop.evaluation.sanity import ClassSensitivity, ParameterRandomization, RandomizationCurve
from relprop.evaluation.segmentation import (
    Segmentation,
    SegmentationResult,
    SegmentationTally,
    upsampled,
)
from relprop.evaluation.shipped import digit_scenes, reviews
from relprop.evaluation.table import Numbers, Table
from relprop.evaluation.text_task import TextTask
from relprop.evaluation.texts import word_scores
from relprop.evaluation.tune import Tuned, tune
from relprop.evaluation.words import PrecisionAtK, TokenF1
from relprop.evaluation.work import EvaluationWork, numbers

__all__ = [
    "AOPC",
    "Batch",
    "ClassCorrelation",
    "ClassSensitivity",
    "Entry",
    "EvaluationWork",
    "FaithfulnessCurve",
    "ImageCurve",
    "ImagePerturbation",
    "ImageTask",
    "Infidelity",
    "InputPerturbation",
    "Interval",
    "KendallConfidence",
    "LOdds",
    "LinearDatamodelingScore",
    "Maps",
    "MaxSensitivity",
    "Measure",
    "Metric",
    "Numbers",
    "OfLabel",
    "ParameterRandomization",
    "PerturbationCurve",
    "PrecisionAtK",
    "Randomisation",
    "RandomizationCurve",
    "Segmentation",
    "SegmentationCounts",
    "SegmentationResult",
    "SegmentationTally",
    "Statistic",
    "Table",
    "TextPerturbation",
    "TextTask",
    "TokenF1",
    "TopKDrop",
    "Tuned",
    "Unfaithful",
    "Unstable",
    "bootstrap",
    "digit_scenes",
    "evaluate",
    "joined",
    "mean_of",
    "numbers",
    "reviews",
    "tune",
    "upsampled",
    "word_scores",
]


def __dir__() -> list[str]:
    return __all__
