"""Is the explanation right? Metrics of explanations, as published, with the places named where paper and published code differ.

``docs/evaluation-metrics.md`` has the definitions. Needs ``relprop[evaluation]`` (SciPy, scikit-learn).
"""

from relprop.evaluation.base import Interval, Metric, bootstrap
from relprop.evaluation.segmentation import Segmentation, SegmentationResult, SegmentationTally, upsampled

__all__ = ["Interval", "Metric", "Segmentation", "SegmentationResult", "SegmentationTally", "bootstrap", "upsampled"]
