"""Is the explanation right? Metrics of explanations, as published, with the places named where paper and published code differ.

``docs/evaluation-metrics.md`` has the definitions. Needs ``relprop[evaluation]`` (SciPy, scikit-learn).
"""

from relprop.evaluation.base import Interval, Metric, bootstrap
from relprop.evaluation.confidence import KendallConfidence
from relprop.evaluation.faithfulness import AOPC, FaithfulnessCurve, LOdds
from relprop.evaluation.perturbation import ImagePerturbation, PerturbationCurve, TextPerturbation, joined
from relprop.evaluation.robustness import Infidelity, MaxSensitivity
from relprop.evaluation.sanity import ClassSensitivity, ParameterRandomization, RandomizationCurve
from relprop.evaluation.segmentation import Segmentation, SegmentationResult, SegmentationTally, upsampled
from relprop.evaluation.texts import word_scores
from relprop.evaluation.words import PrecisionAtK, TokenF1

__all__ = [
    "AOPC", "ClassSensitivity", "FaithfulnessCurve", "ImagePerturbation", "Infidelity", "Interval", "KendallConfidence", "LOdds", "MaxSensitivity", "Metric",
    "ParameterRandomization", "PerturbationCurve", "PrecisionAtK", "RandomizationCurve", "Segmentation", "SegmentationResult", "SegmentationTally", "TextPerturbation",
    "TokenF1", "bootstrap", "joined", "upsampled", "word_scores",
]
