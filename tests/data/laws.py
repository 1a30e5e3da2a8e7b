"""What every reader keeps: a sample read twice is the same, in any process; positions, iteration,
identity."""

import json
import multiprocessing
import pickle

import pytest
import torch

from relprop.data import Sample, Source


def same(a: Sample, b: Sample) -> bool:
    plain = [(s.key, s.label, s.others, s.words, s.rationale) for s in (a, b)]
    tensors = [(getattr(a, name), getattr(b, name)) for name in ("inputs", "mask")]
    return plain[0] == plain[1] and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in tensors
    )


def sent(queue, source, index):
    sample = source[index]
    queue.put(
        (
            sample.key,
            sample.label,
            sample.words,
            sample.rationale,
            None if isinstance(sample.inputs, (str, tuple)) else sample.inputs.numpy(),
        )
    )


def holds_the_laws(source, length: int, anew, *, fork: bool = False) -> None:
    """``anew``: makes the same source again; ``fork``: also read in a forked process, while this
    one has the file open."""
    assert isinstance(source, Source) and source.kind in ("image", "text") and source.name
    assert len(source) == length and len({sample.key for sample in source}) == length
    assert same(source[0], source[0]) and same(source[-1], source[length - 1])
    assert same(pickle.loads(pickle.dumps(source))[0], source[0]) and same(
        anew()[length - 1], source[length - 1]
    )
    for index in (length, -length - 1):
        with pytest.raises(IndexError, match=f"samples 0 to {length - 1}, not {index}"):
            source[index]
    identity = json.dumps(source.identity(), sort_keys=True)
    assert (
        identity == json.dumps(anew().identity(), sort_keys=True)
        and "/tmp" not in identity
        and " at 0x" not in identity
    )
    for sample in source:
        assert isinstance(sample, Sample)
        if source.kind == "image":
            assert (
                sample.inputs.dim() == 3
                and sample.inputs.dtype == torch.float32
                and sample.inputs.min() >= 0
                and sample.inputs.max() <= 1
            )
        if sample.words is not None:
            texts = (sample.inputs,) if isinstance(sample.inputs, str) else sample.inputs
            assert all(texts[w.text][w.start : w.end].strip() for w in sample.words)
            assert sample.rationale is None or len(sample.rationale) == len(sample.words)
        assert (
            sample.label is None or source.labels is None or 0 <= sample.label < len(source.labels)
        )
    if fork:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        children = [
            context.Process(target=sent, args=(queue, source, length - 1)) for _ in range(2)
        ]
        for child in children:
            child.start()
        for key, label, words, rationale, pixels in [queue.get(timeout=60) for _ in children]:
            here = source[length - 1]
            assert (key, label, words, rationale) == (
                here.key,
                here.label,
                here.words,
                here.rationale,
            )
            assert pixels is None or torch.equal(torch.from_numpy(pixels), here.inputs)
        for child in children:
            child.join()
