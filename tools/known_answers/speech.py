"""Speech with pauses: where did a speech recogniser hear a word?

Sentences drawn by chance are spoken by a synthesiser, with silence of chance length before them
and between their phrases. Whisper tiny.en is asked about a word of the true transcript: its first
token, at the decoder's position before it. The truth is the time in which the word is spoken.
"""

from __future__ import annotations

import copy
import difflib
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.ndimage import median_filter
from scipy.signal import resample_poly
from torch import Tensor, nn

import relprop
from examples.whisper_tiny import ALIGNMENT_HEADS, whisper_tiny, whisper_tokenizer
from tools.known_answers.espeak import speak
from tools.known_answers.rows import FLOORS, METHODS, noise, share, steadiness
from tools.known_answers.study import Column, Value

RATE = 16000
NOUNS = (
    *("farmer", "doctor", "teacher", "captain", "painter", "singer", "dancer", "soldier", "lawyer"),
    *("monkey", "tiger", "rabbit", "spider", "camel", "dragon", "horse", "dog", "cat", "bird"),
)
THINGS = (
    *("table", "window", "garden", "bottle", "ladder", "basket", "hammer", "pillow", "candle"),
    *("boat", "bridge", "castle", "river", "mountain", "forest", "kitchen", "letter", "jacket"),
)
MARKS = (
    *("old", "young", "happy", "lazy", "clever", "angry", "quiet", "famous", "hungry", "gentle"),
    *("yellow", "purple", "broken", "heavy", "little", "empty", "dirty", "golden", "wooden"),
)
VERBS = (
    *("painted", "carried", "followed", "watched", "found", "bought", "dropped", "wanted"),
    *("opened", "covered", "pulled", "visited", "needed", "touched", "noticed", "remembered"),
)
PLACES = ("behind", "under", "near", "beside", "above", "outside", "without", "after")


VOICES, SPEED = ("en", "en-us"), 120
"""Chosen by word error alone, on 10 other sentences (100 words): 3 and 5 words wrong at 120 words a
minute, 20 and 9 at 150. Three more voices had 11 to 34 wrong at 120."""
SHORT = ("the",)
"""Not asked about: it is spoken three times, a tenth of a second each."""
START = (50257, 50362)
"""The tokens before a transcript: its start, no timestamps."""
END = 50256
LENGTH = 30.0
"""Seconds that Whisper always takes; what is not sound is silence."""
FRAMES = 1500
MARGIN = 0.1
AT_ENCODER = "share at the encoder's output"
WORDS = 5
"""At most so many words of a sentence, drawn by chance."""
DEAR = dict.fromkeys(
    ("gae", "gae, balanced"),
    "too dear in the whole model: 16 s a word (matrices of 1500 x 1500 are multiplied)",
)
SAME = {"gradient_x_input, balanced": "the numbers of cp_lrp: balanced gradients are its gradients"}
ROWS = {name: call for name, call in METHODS.items() if name not in SAME}
EXTRA, FEW, TIMED = 8, 3, 1
"""Units with "deletion" (of their first three words), "random weights" and "stability" (of their
first); those with all rows from the spectrogram on; the one whose first word is timed."""
RARE = ("lrp", "epsilon_lrp", "partial_lrp")
"""Rows that are explained from the spectrogram on in ``FEW`` units alone: together they cost more
than all others."""


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sentence as 16 kHz sound; of each word its first and last second."""

    words: tuple[str, ...]
    voice: str
    sound: np.ndarray
    times: tuple[tuple[float, float], ...]


def phrases(drawn: random.Random) -> list[str]:
    """A sentence drawn by chance, in the phrases that pauses stand between."""
    one, two, three = drawn.choice(NOUNS), *drawn.sample(THINGS, 2)
    first, second = drawn.sample(MARKS, 2)
    return [
        f"the {first} {one}",
        f"{drawn.choice(VERBS)} the {second} {two}",
        f"{drawn.choice(PLACES)} the {three}",
    ]


def spoken(drawn: random.Random, voice: str, speed: int) -> Sentence:
    """A sentence drawn by chance and spoken, with silence of 0.5 to 3 seconds before it and of 0.5
    to 2.5 seconds between its phrases.

    A word ends where the next of its phrase starts, the last one where the sound ends.
    """
    sound = [np.zeros(int(drawn.uniform(0.5, 3.0) * RATE), np.float32)]
    words, times = [], []
    for phrase in phrases(drawn):
        said = speak(phrase, voice, speed)
        heard = resample_poly(said.sound, RATE, said.rate).astype(np.float32)
        loud = np.flatnonzero(np.abs(heard) > 0.01)
        heard = heard[: loud[-1] + 1]
        start = sum(map(len, sound)) / RATE
        starts = [start + at for _, _, at in said.words]
        words += phrase.split()
        ends = [*starts[1:], start + len(heard) / RATE]
        times += list(zip(starts, ends, strict=True))
        assert len(times) == len(words), "an event for each word"
        sound += [heard, np.zeros(int(drawn.uniform(0.5, 2.5) * RATE), np.float32)]
    return Sentence(tuple(words), voice, np.concatenate(sound), tuple(times))


def middles(frames: int) -> Tensor:
    """The second in the middle of each frame of a map."""
    return (torch.arange(frames, dtype=torch.float64) + 0.5) * LENGTH / frames


def within(frames: int, start: float, end: float) -> Tensor:
    """(frames,), bool: those from a second to another."""
    at = middles(frames)
    return (at >= start) & (at <= end)


def right(said: Sequence[str], transcript: str) -> list[bool]:
    """Which of the words that were said a transcript has, in this order."""
    heard = re.findall(r"[a-z']+", transcript.lower())
    found = [False] * len(said)
    for block in difflib.SequenceMatcher(None, list(said), heard, False).get_matching_blocks():
        found[block.a : block.a + block.size] = [True] * block.size
    return found


def hottest(scores: Tensor, seconds: float) -> float:
    """Where the window of this length starts that holds most of a map's positive part."""
    size = max(1, round(seconds * len(scores) / LENGTH))
    sums = scores.double().clamp(min=0).unfold(0, size, 1).sum(1)
    return int(sums.argmax()) * LENGTH / len(scores)


def warped(maps: Tensor) -> list[tuple[int, int]]:
    """First and last frame of each token, by the cheapest monotone path through (tokens, frames)
    of attention."""
    tokens, frames = maps.shape
    cost = np.full((tokens + 1, frames + 1), np.inf)
    cost[0, 0] = 0
    came = np.zeros((tokens + 1, frames + 1), int)
    values = -maps.double().numpy()
    for f in range(1, frames + 1):
        for t in range(1, tokens + 1):
            ways = cost[t - 1, f - 1], cost[t - 1, f], cost[t, f - 1]
            came[t, f] = min(range(3), key=ways.__getitem__)
            cost[t, f] = values[t - 1, f - 1] + ways[came[t, f]]
    t, f, path = tokens, frames, []
    while t and f:
        path.append((t - 1, f - 1))
        step = came[t, f]
        t, f = t - (step != 2), f - (step != 1)
    return [
        (min(f for at, f in path if at == t), max(f for at, f in path if at == t))
        for t in range(tokens)
    ]


class FromEncoder(nn.Module):
    """Whisper from its encoder's output on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder, self.head = model.model.decoder, model.proj_out

    def forward(self, heard: Tensor, decoder_input_ids: Tensor) -> Tensor:
        hidden = self.decoder(
            input_ids=decoder_input_ids, encoder_hidden_states=heard, use_cache=False
        )
        scores: Tensor = self.head(hidden.last_hidden_state)
        return scores


@dataclass(frozen=True, eq=False)
class Asked:
    """A sentence as the model takes it: its features, the encoder's output, the transcript's ids,
    of each word the position of its first token, and the words that are asked about."""

    sentence: Sentence
    features: Tensor
    heard: Tensor
    ids: Tensor
    first: tuple[int, ...]
    words: tuple[int, ...]

    @property
    def targets(self) -> list[tuple[int, int]]:
        """Of each word asked about: the position that predicts its first token, and that token."""
        return [(self.first[w] - 1, int(self.ids[0, self.first[w]])) for w in self.words]

    @property
    def speech(self) -> tuple[float, float]:
        """When the first word starts and the last one ends."""
        return self.sentence.times[0][0], self.sentence.times[-1][1]


@dataclass(eq=False)
class Speech:
    """The study. A unit is a sentence, its samples are words."""

    count: int = 44
    seed: int = 53
    name: ClassVar[str] = "speech"
    title: ClassVar[str] = "Speech with pauses (Whisper tiny.en): when a word is spoken"
    units: ClassVar[str] = "sentences"
    samples: ClassVar[str] = "words"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share", True, 100),
        *(Column(f"share: voice {voice}", True, 100) for voice in "AB"),
        Column(AT_ENCODER, True, 100),
        *(Column(f"{AT_ENCODER}: voice {voice}", True, 100) for voice in "AB"),
        Column("peak", True, 100),
        Column("peak at the encoder's output", True, 100),
        Column("after the end", False, 100),
        Column("deletion", True, 1),
        Column("random weights", False, 1),
        Column("stability", False, 1),
        Column("seconds", False, 1),
    )
    comparisons: ClassVar[tuple[str, ...]] = (
        *("cross-attention", "alignment heads", "alignment heads, warped", "word i of n", *FLOORS),
    )

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = SAME | DEAR
        self.verified: set[nn.Module] = set()

    @property
    def rows(self) -> tuple[str, ...]:
        return (*ROWS, *self.comparisons, "truth")

    @cached_property
    def model(self) -> Any:
        return whisper_tiny()

    @cached_property
    def decoder(self) -> FromEncoder:
        return FromEncoder(self.model).eval()

    @cached_property
    def shown(self) -> Any:
        """The same model, which returns its attention."""
        model = copy.deepcopy(self.model)
        model.set_attn_implementation("eager")
        return model

    @cached_property
    def untrained(self) -> FromEncoder:
        """The decoder with weights drawn anew."""
        torch.manual_seed(0)
        return FromEncoder(type(self.model)(self.model.config)).eval()

    @cached_property
    def double(self) -> nn.Module:
        return copy.deepcopy(self.decoder).double()

    @cached_property
    def features(self) -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor()

    @cached_property
    def sentences(self) -> list[Sentence]:
        drawn = random.Random(self.seed)
        return [spoken(drawn, VOICES[i % 2], SPEED) for i in range(self.count)]

    @cached_property
    def right(self) -> list[list[bool]]:
        """Which words the model, left to itself, writes right."""
        return [right(s.words, self.transcript(self.listen(s.sound))) for s in self.sentences]

    def __len__(self) -> int:
        return self.count

    def key(self, unit: int) -> str:
        return " ".join(self.sentences[unit].words)

    def identity(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "seed": self.seed,
            "rows": list(self.rows),
            "explained": [WORDS, EXTRA, FEW, MARGIN, *RARE],
            "voices": list(VOICES),
            "words": sum(map(len, self.right)),
            "words right": sum(map(sum, self.right)),
            "words asked about": sum(len(self.asked(i).words) for i in range(self.count)),
        }

    def listen(self, sound: np.ndarray) -> Tensor:
        """A recording as the model takes it, (1, 80, 3000)."""
        made = self.features(sound, sampling_rate=RATE, return_tensors="pt")
        return torch.as_tensor(made["input_features"])

    @torch.no_grad()
    def transcript(self, features: Tensor) -> str:
        """The likeliest token again and again."""
        heard = self.model.model.encoder(features).last_hidden_state
        ids = torch.tensor([START])
        while ids.shape[1] < 40 and int(ids[0, -1]) != END:
            best = self.decoder(heard, ids)[:, -1:].argmax(-1)
            ids = torch.cat([ids, best], 1)
        return str(self.tokenizer.decode(ids[0], skip_special_tokens=True))

    @cached_property
    def tokenizer(self) -> Any:
        return whisper_tokenizer()

    @cache  # noqa: B019 (one study, few units)
    def asked(self, unit: int) -> Asked:
        sentence = self.sentences[unit]
        ids, first = list(START), []
        for i, word in enumerate(sentence.words):
            first.append(len(ids))
            written = f" {word if i else word.capitalize()}"
            ids += self.tokenizer.encode(written, add_special_tokens=False)
        may = [
            i
            for i, (word, good) in enumerate(zip(sentence.words, self.right[unit], strict=True))
            if good and word not in SHORT
        ]
        words = random.Random(self.seed + unit).sample(may, min(WORDS, len(may)))
        features = self.listen(sentence.sound)
        with torch.no_grad():
            heard = self.model.model.encoder(features).last_hidden_state
        return Asked(sentence, features, heard, torch.tensor([ids]), tuple(first), tuple(words))

    def __call__(self, unit: int) -> Iterator[Value]:
        asked = self.asked(unit)
        if not asked.words:
            return
        names = [f"{unit}:{w}" for w in asked.words]
        maps = self.compared(asked, unit) | {"truth": self.truths(asked)}
        maps |= self.explained(asked, unit < FEW)
        late = self.explained_late(self.decoder, asked)
        for row, ones in late.items():
            if not any(
                one.any() for one in ones
            ):  # ``cat``: no layer of the decoder has the frames
                continue
            for i, one in enumerate(ones):
                yield from self.measured_late(asked, unit, names[i], row, i, one)
        if unit == TIMED:
            yield from self.timed(asked, names[0])
        for row in (*self.comparisons, "truth"):  # over the same frames
            for i, one in enumerate(maps[row]):
                yield from self.measured_late(asked, unit, names[i], row, i, one)
        for row, ones in maps.items():
            for i, one in enumerate(ones):
                for column, number in self.measured(asked, unit, i, one):
                    yield Value(names[i], row, column, number)
        if unit < EXTRA:
            yield from self.falls(asked, unit, names, maps)
            yield from self.checked(asked, names[0], {row: ones[0] for row, ones in late.items()})

    def explained(self, asked: Asked, rare: bool) -> dict[str, list[Tensor]]:
        """Maps over time as ``explain`` gives them for the recording: methods over attention score
        the encoder's frames of 20 ms, those at the input the spectrogram's of 10 ms."""
        left = {*DEAR, *(() if rare else RARE)}
        rows = {row: call for row, call in ROWS.items() if row not in left}
        return self._every(self.model, self.inputs(asked), asked.targets, rows, "input_features")

    def explained_late(
        self, model: nn.Module, asked: Asked, words: int = WORDS
    ) -> dict[str, list[Tensor]]:
        """Maps over the encoder's output: the decoder alone is explained."""
        heard = asked.heard.to(next(model.parameters()).dtype)
        inputs = {"heard": heard, "decoder_input_ids": asked.ids}
        return self._every(model, inputs, asked.targets[:words], ROWS, "heard")

    def inputs(self, asked: Asked) -> dict[str, Tensor]:
        return {"input_features": asked.features, "decoder_input_ids": asked.ids}

    def _every(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        targets: Sequence[tuple[int, int]],
        rows: Mapping[str, Mapping[str, Any]],
        stream: str,
    ) -> dict[str, list[Tensor]]:
        """Maps of every row for each target, which share a forward pass and gradients."""
        asked = {row: (call["method"], {**call}) for row, call in rows.items()}
        for _, options in asked.values():
            del options["method"]
        named = [method for method, _ in asked.values()]
        found: dict[str, list[Tensor]] = {}
        for target in targets:
            first = model not in self.verified  # the model's own pass, once
            self.verified.add(model)
            every = relprop.compare(
                model, inputs, [*asked.values()], target, progress=False, verify=first
            )
            for row, (method, options) in asked.items():
                several = named.count(method) > 1 and options
                said = ", ".join(f"{k}={v!r}" for k, v in options.items())
                label = f"{method}({said})" if several else method
                if label in every.refused:
                    self.refused[row] = every.refused[label]
                else:
                    scores = every[label][stream].scores[0].detach().double()
                    found.setdefault(row, []).append(scores)
        return found

    def timed(self, asked: Asked, name: str) -> Iterator[Value]:
        """Seconds of one word by each row alone."""
        for row, call in ROWS.items():
            if row not in self.refused or row in DEAR:
                start = time.process_time()
                relprop.explain(
                    self.model,
                    self.inputs(asked),
                    asked.targets[0],
                    progress=False,
                    verify=False,
                    **call,
                )
                yield Value(name, row, "seconds", time.process_time() - start)

    def compared(self, asked: Asked, unit: int) -> dict[str, list[Tensor]]:
        """The maps that no explanation made."""
        with torch.no_grad():
            shown = self.shown.model.decoder(
                input_ids=asked.ids,
                encoder_hidden_states=asked.heard,
                output_attentions=True,
                use_cache=False,
            )
        attention = torch.stack(shown.cross_attentions)[:, 0].double()  # layer, head, token, frame
        heads = torch.stack([attention[layer, head] for layer, head in ALIGNMENT_HEADS])
        at = [position for position, _ in asked.targets]
        start, end = asked.speech
        size = (end - start) / len(asked.sentence.words)
        seed = 1000 * unit
        return {
            "cross-attention": list(attention.mean((0, 1))[at]),
            "alignment heads": list(heads.mean(0)[at]),
            "alignment heads, warped": self.warped(asked, heads),
            "word i of n": [
                within(FRAMES, start + w * size, start + (w + 1) * size).double()
                for w in asked.words
            ],
            "uniform": [torch.ones(FRAMES)] * len(at),
            "random": [noise(seed + w, FRAMES) for w in asked.words],
        }

    def truths(self, asked: Asked) -> list[Tensor]:
        times = [asked.sentence.times[w] for w in asked.words]
        return [within(FRAMES, *one).double() for one in times]

    def warped(self, asked: Asked, heads: Tensor) -> list[Tensor]:
        """Words' times as Whisper's own code finds them: the heads' attention up to the end of the
        recording, standardised over tokens, smoothed over 7 frames, meaned, warped."""
        length = min(FRAMES, round(len(asked.sentence.sound) / RATE * FRAMES / LENGTH))
        seen = heads[:, len(START) - 1 :, :length]
        seen = (seen - seen.mean(1, True)) / seen.std(1, keepdim=True, correction=0)
        smooth = torch.from_numpy(median_filter(seen.numpy(), (1, 1, 7), mode="reflect"))
        spans = warped(smooth.mean(0))
        edges = [*(f - len(START) for f in asked.first), len(spans) - 1]
        maps = []
        for w in asked.words:
            one = torch.zeros(FRAMES)
            one[spans[edges[w]][0] : spans[edges[w + 1] - 1][1] + 1] = 1
            maps.append(one)
        return maps

    def shares(self, asked: Asked, sample: int, scores: Tensor) -> float:
        start, end = asked.sentence.times[asked.words[sample]]
        return share(scores, within(len(scores), start - MARGIN, end + MARGIN))

    def measured(
        self, asked: Asked, unit: int, sample: int, scores: Tensor
    ) -> Iterator[tuple[str, float]]:
        on = self.shares(asked, sample, scores)
        yield "share", on
        yield f"share: voice {'AB'[unit % 2]}", on
        start, end = asked.sentence.times[asked.words[sample]]
        peak = within(len(scores), start - MARGIN, end + MARGIN)[scores.argmax()]
        yield "peak", float(peak and scores.max() > 0)
        yield "after the end", share(scores, middles(len(scores)) > asked.speech[1] + MARGIN)

    def measured_late(
        self, asked: Asked, unit: int, name: str, row: str, sample: int, scores: Tensor
    ) -> Iterator[Value]:
        """The same of a map over the encoder's output."""
        on = self.shares(asked, sample, scores)
        yield Value(name, row, AT_ENCODER, on)
        yield Value(name, row, f"{AT_ENCODER}: voice {'AB'[unit % 2]}", on)
        start, end = asked.sentence.times[asked.words[sample]]
        peak = within(FRAMES, start - MARGIN, end + MARGIN)[scores.argmax()]
        yield Value(name, row, "peak at the encoder's output", float(peak and scores.max() > 0))

    def falls(
        self, asked: Asked, unit: int, names: list[str], maps: Mapping[str, list[Tensor]]
    ) -> Iterator[Value]:
        """What the probability of a word loses when the hottest part of its map, as long as the
        word, is silent; "random": the mean of three parts drawn by chance within the speech."""
        drawn = random.Random(self.seed + unit)
        for i, (position, token) in list(enumerate(asked.targets))[:3]:
            start, end = asked.sentence.times[asked.words[i]]
            size = end - start
            at = {row: [hottest(m[i], size)] for row, m in maps.items() if len(m) > i}
            del at["uniform"]
            first, last = asked.speech
            at |= {"random": [drawn.uniform(first, last - size) for _ in range(3)]}
            at |= {"truth": [start]}
            places = sorted({place for some in at.values() for place in some})
            left = dict(
                zip(places, self.silenced(asked, places, size, position, token), strict=True)
            )
            before = self.probability(asked.heard, asked.ids, position, token)
            for row, some in at.items():
                fall = before - sum(left[place] for place in some) / len(some)
                yield Value(names[i], row, "deletion", fall)

    def silenced(
        self, asked: Asked, places: list[float], size: float, position: int, token: int
    ) -> Iterator[float]:
        """The word's probability without the sound of ``size`` seconds from each place on."""
        for place in places:
            sound = asked.sentence.sound.copy()
            sound[round(place * RATE) : round((place + size) * RATE)] = 0
            with torch.no_grad():
                heard = self.model.model.encoder(self.listen(sound)).last_hidden_state
            yield self.probability(heard, asked.ids, position, token)

    @torch.no_grad()
    def probability(self, heard: Tensor, ids: Tensor, position: int, token: int) -> float:
        return float(self.decoder(heard, ids)[0, position].softmax(-1)[token])

    def checked(self, asked: Asked, name: str, late: Mapping[str, Tensor]) -> Iterator[Value]:
        """How steady a word's map over the encoder's output is; the encoder stays as it is."""
        drawn = self.explained_late(self.untrained, asked, 1)
        exact = self.explained_late(self.double, asked, 1)
        for row, one in late.items():
            if row in drawn and row in exact and one.any():
                for column, number in steadiness(one, drawn[row][0], exact[row][0]):
                    yield Value(name, row, column, number)
