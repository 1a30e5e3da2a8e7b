"""Where does an atom of a product come from? A masked language model of chemical reactions fills in
a product's masked atom; the atom of the reactants that it comes from is known, because the
reactions are made from templates.

Of the atoms, those in ``element`` are the only ones of their element on either side. Those in
``fragment`` were written with a fragment that stands on both sides, so their place in it says where
they come from. Atoms of the reactants that are the same by symmetry (both ends of a ring, three
methyl groups) are all the source.
"""

from __future__ import annotations

import copy
import math
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from scipy.stats import spearmanr
from torch import Tensor

import relprop
from examples.reaction_model import (
    ATOM,
    MAPPING_HEAD,
    reaction_ids,
    reaction_model,
    reaction_tokens,
    reaction_vocabulary,
)
from relprop.errors import RelpropError, first_line
from tools.known_answers.rows import INTEGRATED, block
from tools.known_answers.study import Column, Value

AT_ONCE = 10
"""Units that are explained in one call, padded to one length."""
EXTRA = 30
"""Units that ``deletion`` is measured on."""
FEW = 10
"""Units that ``random weights`` and ``stability`` are measured on."""
REMOVED = 3
"""Tokens that ``deletion`` masks."""
DRAWS = 4
"""Times that as many random ones are masked."""
MOST = {"element": 2, "fragment": 3}
"""Atoms of a reaction that are asked for, at most."""

ARYL = (
    "c1ccccc1", "c1ccc(F)cc1", "c1ccc(Cl)cc1", "c1ccc(C)cc1", "c1ccc(OC)cc1", "c1cccc(C#N)c1",
    "c1ccc(C(F)(F)F)cc1", "c1cccc(F)c1", "c1ccccc1Cl", "c1ccc(SC)cc1", "c1cccs1", "c1ccccn1",
    "c1cccnc1", "c1ccco1", "c1ccc(I)cc1", "c1ccc(C(C)(C)C)cc1", "c1ccc(F)c(C)c1",
)  # fmt: skip
ALKYL = (
    "C", "CC", "CCC", "CC(C)", "CCCC", "CC(C)C", "COCC", "CSCC", "FC(F)(F)C", "C=CC", "N#CCC",
    "ClCCC", "CC(C)(C)", "C[Si](C)(C)CC", "CCCCCC", "BrCCC", "FCC",
)  # fmt: skip
CHAIN = ("C", "CC", "CCC", "C(C)C", "CCCC", "CCOC", "CCSC", "CCC(C)C", "CC(F)(F)F", "CCCCl")
POOR = (
    "c1ccc([N+](=O)[O-])cc1", "c1ccccc1[N+](=O)[O-]", "c1ncccn1", "c1ccc(C#N)cn1", "c1ccccn1",
    "c1ncc(Br)cn1", "c1cnccn1", "c1ccc([N+](=O)[O-])c(Cl)c1", "c1ccc([N+](=O)[O-])cn1",
)  # fmt: skip
HALVES = (
    ("Fc1ccc(", ")cc1"), ("COc1ccc(", ")cc1"), ("Cc1ccc(", ")cc1"), ("N#Cc1ccc(", ")cc1"),
    ("CSc1ccc(", ")cc1"), ("FC(F)(F)c1ccc(", ")cc1"), ("Clc1ccc(", ")cc1"), ("c1cc(", ")ccn1"),
    ("Cc1cc(", ")cs1"), ("CC(=O)c1ccc(", ")cc1"),
)  # fmt: skip
REAGENTS = ("CN(C)C=O", "C1CCOC1", "CCN(CC)CC", "ClCCl", "O=C([O-])[O-].[K+].[K+]", "CO", "O")
"""What a reaction may be done with, besides: none of it reaches the product."""


@dataclass(frozen=True)
class Template:
    """A reaction as words: ``name:text`` is a piece that is the same on both sides, a capital name
    a fragment that is drawn (``fragments``), anything else is text whose source is not asked for.

    ``Name'``: the fragment with its ring numbered 2, since ring 1 is open there.
    """

    name: str
    reactants: str
    product: str
    fragments: Mapping[str, Sequence[str]]


TEMPLATES = (
    Template(
        "ester formation",
        "O= c:C (O) Rest . Alkyl o:O",
        "Alkyl o c (=O) Rest",
        {"Rest": ARYL + CHAIN, "Alkyl": ALKYL},
    ),
    Template(
        "amide coupling",
        "O= c:C (O) Rest . Alkyl n:N",
        "Alkyl n c (=O) Rest",
        {"Rest": ARYL + CHAIN, "Alkyl": ALKYL},
    ),
    Template(
        "anilide coupling",
        "O= c:C (O) Rest . n:N Aryl",
        "O= c ( n Aryl ) Rest",
        {"Rest": ARYL + CHAIN, "Aryl": ARYL},
    ),
    Template(
        "Suzuki coupling",
        "Head Br Tail . OB(O) Aryl",
        "Head - Aryl' Tail",
        {"Head": tuple(head for head, _ in HALVES), "Aryl": ARYL},
    ),
    *(
        Template(
            f"SNAr by {atom}",
            f"{leaving} Poor . Alkyl x:{atom}",
            "Alkyl x Poor",
            {"Poor": POOR, "Alkyl": ALKYL},
        )
        for atom, leaving in (("N", "F"), ("O", "F"), ("S", "Cl"))
    ),
    Template(
        "ester hydrolysis",
        "Alkyl O c:C (=O) Rest . [OH-].[Na+]",
        "O= c (O) Rest",
        {"Rest": ARYL + CHAIN, "Alkyl": ALKYL},
    ),
)


class Atom(NamedTuple):
    """A product's atom: its token's place, those of the reactants' atoms that it comes from, and
    how that is known (``element`` or ``fragment``)."""

    at: int
    sources: tuple[int, ...]
    known: str


@dataclass(frozen=True)
class Reaction:
    """``tokens`` without special ones; ``arrow``: the place of ``>>``; ``atoms``: those of the
    product whose source is known."""

    tokens: tuple[str, ...]
    arrow: int
    atoms: tuple[Atom, ...]

    @property
    def text(self) -> str:
        """The reaction as SMILES."""
        return "".join(self.tokens)

    def reactant_atoms(self) -> list[int]:
        """Places of the reactants' atoms."""
        return [i for i in range(self.arrow) if ATOM.fullmatch(self.tokens[i])]


def element(token: str) -> str:
    """``"N"`` for ``n``, ``[N+]`` and ``[nH]``; of a token that is no atom, nothing."""
    letters = re.match(r"\[?([A-Z][a-z]?|[a-z])", token)
    return letters[1].upper() if letters else ""


def symmetry_classes(tokens: Sequence[str]) -> list[int]:
    """A number per token of one or more molecules: equal for atoms of a molecule that symmetry
    exchanges (colour refinement of its graph), different for all else."""
    neighbours: dict[int, list[tuple[str, int]]] = {}
    open_rings: dict[str, int] = {}
    branches: list[int | None] = []
    last: int | None = None
    bond, molecule, start = "", 0, {}

    def connect(i: int, j: int) -> None:
        neighbours[i].append((bond, j))
        neighbours[j].append((bond, i))

    for i, token in enumerate(tokens):
        start[i] = (molecule, token) if ATOM.fullmatch(token) else (-1 - i, token)
        if ATOM.fullmatch(token):
            neighbours[i] = []
            if last is not None:
                connect(last, i)
            last, bond = i, ""
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token == ".":
            last, molecule = None, molecule + 1
        elif token in "-=#":
            bond = token
        elif token in open_rings:
            assert last is not None
            connect(open_rings.pop(token), last)
        else:
            assert last is not None
            open_rings[token] = last
    numbers = _numbered([start[i] for i in range(len(tokens))])
    for _ in tokens:
        numbers = _numbered(
            [
                (n, *sorted((b, numbers[j]) for b, j in neighbours.get(i, ())))
                for i, n in enumerate(numbers)
            ]
        )
    return numbers


def _numbered(values: Sequence[Any]) -> list[int]:
    first = {value: i for i, value in reversed(list(enumerate(values)))}
    return [first[value] for value in values]


def make_reaction(
    template: Template, drawn: Mapping[str, str], reagents: Sequence[str] = ()
) -> Reaction:
    """A template with these fragments for its names and these molecules beside; the molecules in
    the order of their text, as the model was trained."""
    texts = dict(drawn)

    def words(side: str) -> Iterator[tuple[str, str]]:
        """(token, what it is: a piece and the place in it)."""
        for word in side.split():
            name, colon, text = word.partition(":")
            if colon:
                texts[name] = text
            known = texts.get(name.rstrip("'"))
            text = word if known is None else known
            text = text.replace("1", "2") if name.endswith("'") else text
            for i, token in enumerate(reaction_tokens(text)):
                yield token, "" if known is None else f"{name.rstrip(chr(39))} {i}"

    molecules: list[list[tuple[str, str]]] = [
        *(list(words(molecule)) for molecule in template.reactants.split(" . ")),
        *([(token, "") for token in reaction_tokens(reagent)] for reagent in reagents),
    ]
    molecules.sort(key=lambda molecule: "".join(token for token, _ in molecule))
    left = [pair for molecule in molecules for pair in [*molecule, (".", "")]][:-1]
    right = list(words(template.product))
    left_tokens = [token for token, _ in left]
    classes = symmetry_classes(left_tokens)
    found = {piece: i for i, (_, piece) in enumerate(left) if piece}
    atoms = []
    for j, (token, piece) in enumerate(right):
        if ATOM.fullmatch(token) and piece in found:
            alike = classes[found[piece]]
            sources = tuple(i for i, c in enumerate(classes) if c == alike)
            once = all(
                sum(element(other) == element(token) for other, _ in side) == 1
                for side in (left, right)
            )
            atoms.append(Atom(len(left) + 1 + j, sources, "element" if once else "fragment"))
    tokens = (*left_tokens, ">>", *(token for token, _ in right))
    return Reaction(tokens, len(left), tuple(atoms))


def draw_reactions(count: int, seed: int) -> list[Reaction]:
    """``count`` different reactions, of each template as many as of the others, each with up to two
    reagents."""
    chance, made = random.Random(seed), dict[str, Reaction]()
    while len(made) < count:
        template = TEMPLATES[len(made) % len(TEMPLATES)]
        drawn = {name: chance.choice(choices) for name, choices in template.fragments.items()}
        if "Head" in drawn:
            drawn["Tail"] = dict(HALVES)[drawn["Head"]]
        reagents = chance.sample(REAGENTS, chance.choice([0, 0, 1, 2]))
        reaction = make_reaction(template, drawn, reagents)
        chosen = list(reaction.atoms)
        chance.shuffle(chosen)
        few = [[a for a in chosen if a.known == known][:most] for known, most in MOST.items()]
        atoms = tuple(sorted(a for part in few for a in part))
        made.setdefault(reaction.text, Reaction(reaction.tokens, reaction.arrow, atoms))
    return list(made.values())


METHODS: Mapping[str, Mapping[str, Any]] = {
    "transformer_attribution": {},
    "transformer_attribution, stable": {"method": "transformer_attribution", "rules": "stable"},
    "transformer_attribution, balanced": {
        "method": "transformer_attribution",
        "gradient": "balanced",
    },
    "transformer_attribution, no gradient": {
        "method": "transformer_attribution",
        "use_gradient": False,
    },
    "gae": {},
    "rollout": {},
    "raw_attention": {},
    "attention_grad": {},
    "attention_times_grad": {},
    "gradcam": {},
    "partial_lrp": {},
    "attnlrp": {},
    "cp_lrp": {},
    "lrp": {},
    "lrp_gamma": {},
    "epsilon_lrp": {},
    "cat": {},
    "attcat": {},
    "gae, balanced": {"method": "gae", "gradient": "balanced"},
    "attcat, balanced": {"method": "attcat", "gradient": "balanced"},
    "cat, balanced": {"method": "cat", "gradient": "balanced"},
    "gradient_x_input": {},
    "gradient_x_input, balanced": {"method": "gradient_x_input", "gradient": "balanced"},
    "input_gradient": {},
    "integrated_gradients": INTEGRATED,
}
"""Rows that are methods: options of ``relprop.explain``; ``method`` is the row's name where none is
given."""
COMPARISONS = ("mapping head", "same element", "position", "uniform", "random")
"""Rows that are none. ``mapping head`` looks into the model where its authors found the mapping,
``same element`` knows the true token; the rest know nothing."""


class Atoms:
    """The study: a unit is a reaction, its samples are masked atoms that the model fills in right
    (``asked`` says how many there were before)."""

    name = "atoms"
    title = "The atom of the reactants that a product's atom comes from"
    units, samples = "reactions", "atoms"
    columns = (
        Column("share", scale=100),
        Column("best reactant token", scale=100),
        Column("share: element", scale=100),
        Column("best reactant token: element", scale=100),
        Column("share: fragment", scale=100),
        Column("best reactant token: fragment", scale=100),
        Column("deletion", scale=100),
        Column("random weights", higher_is_better=False),
        Column("stability", higher_is_better=False),
        Column("seconds", higher_is_better=False),
    )

    def __init__(
        self,
        count: int = 150,
        seed: int = 0,
        methods: Mapping[str, Mapping[str, Any]] = METHODS,
    ) -> None:
        self.seed, self.methods = seed, methods
        self.rows = (*methods, *COMPARISONS)
        self.model, self.vocabulary = reaction_model(), reaction_vocabulary()
        self._mask = self.vocabulary["[MASK]"]
        reactions = draw_reactions(count, seed)
        self.asked = sum(len(reaction.atoms) for reaction in reactions)
        self.width = 2 + max(len(r.tokens) for r in reactions)
        self.reactions = [kept for r in reactions if (kept := self._right(r)).atoms]
        self.refused: dict[str, str] = {}
        self._unit = block(self._make, AT_ONCE)

    def _right(self, reaction: Reaction) -> Reaction:
        """With those of its atoms alone that the model fills in right."""
        if not reaction.atoms:
            return reaction
        inputs, targets = self._inputs(reaction)
        with torch.no_grad():
            logits = self.model(**inputs).logits
        right = [int(logits[i, at].argmax()) == token for i, (at, token) in enumerate(targets)]
        atoms = tuple(a for a, is_right in zip(reaction.atoms, right, strict=True) if is_right)
        return Reaction(reaction.tokens, reaction.arrow, atoms)

    def _inputs(self, *reactions: Reaction) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
        """Ids, a row per atom with that atom masked, padded; and each atom's place and true
        token."""
        rows, targets, lengths = list[Tensor](), list[tuple[int, int]](), list[int]()
        for reaction in reactions:
            ids = reaction_ids(reaction.tokens, self.vocabulary)
            for atom in reaction.atoms:
                at = atom.at + 1
                row = torch.full((self.width,), self.vocabulary["[PAD]"])
                row[: len(ids)] = ids
                row[at] = self._mask
                rows.append(row)
                targets.append((at, int(ids[at])))
                lengths.append(len(ids))
        there = torch.arange(self.width) < torch.tensor(lengths)[:, None]
        return {"input_ids": torch.stack(rows), "attention_mask": there.long()}, targets

    def __len__(self) -> int:
        return len(self.reactions)

    def key(self, unit: int) -> str:
        """A reaction's text."""
        return self.reactions[unit].text

    def identity(self) -> dict[str, Any]:
        """What the numbers depend on."""
        methods = {name: {k: str(v) for k, v in m.items()} for name, m in self.methods.items()}
        sizes = [AT_ONCE, EXTRA, FEW, REMOVED, DRAWS, len(self)]
        return {"weights": "rxnmapper", "seed": self.seed, "sizes": sizes, "methods": methods}

    @cached_property
    def _fresh(self) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            fresh: Any = type(self.model)(self.model.config)
            return fresh.eval()

    @cached_property
    def _eager(self) -> Any:
        model = copy.deepcopy(self.model)
        model.set_attn_implementation("eager")
        return model

    def _explain(
        self,
        row: str,
        model: Any,
        inputs: Mapping[str, Tensor],
        targets: Sequence[tuple[int, int]],
        **more: Any,
    ) -> Tensor:
        options: dict[str, Any] = {"method": row, **self.methods[row], **more}
        return relprop.explain(model, inputs, list(targets), progress=False, **options).scores

    def _comparison(self, row: str, unit: int) -> Tensor:
        """A map per atom by a row that is no method."""
        reaction = self.reactions[unit]
        inputs, _ = self._inputs(reaction)
        shape = inputs["input_ids"].shape
        scores = torch.zeros(shape)
        places = reaction.reactant_atoms()
        if row == "uniform":
            return scores + 1
        if row == "random":
            generator = torch.Generator().manual_seed(self.seed * 100_003 + unit)
            return torch.rand(shape, generator=generator)
        if row == "mapping head":
            layer, head = MAPPING_HEAD
            with torch.no_grad():
                found = self._eager(**inputs, output_attentions=True)
                attention = found.attentions[layer][:, head]
            return torch.stack(
                [a[at.at + 1] for a, at in zip(attention, reaction.atoms, strict=True)]
            )
        end = len(reaction.tokens) - 1
        for i, atom in enumerate(reaction.atoms):
            if row == "same element":
                same = [p for p in places if reaction.tokens[p] == reaction.tokens[atom.at]]
            else:
                there = (atom.at - reaction.arrow - 1) / max(1, end - reaction.arrow - 1)
                same = [min(places, key=lambda p: abs(p / (reaction.arrow - 1) - there))]
            scores[i, [p + 1 for p in same]] = 1
        return scores

    def __call__(self, unit: int) -> list[Value]:
        """All numbers of a reaction."""
        found: list[Value] = self._unit(unit)
        return found

    def _make(self, first: int) -> list[list[Value]]:
        """All numbers of some reactions, which are explained together."""
        units = range(first, min(first + AT_ONCE, len(self)))
        some = [self.reactions[unit] for unit in units]
        inputs, targets = self._inputs(*some)
        counts = [len(reaction.atoms) for reaction in some]
        found: list[list[Value]] = [[] for _ in some]
        chance = self._by_chance(some, first) if first < EXTRA else None
        for row in self.rows:
            if row in COMPARISONS:
                maps, costs = [self._comparison(row, unit) for unit in units], [math.nan]
            else:
                started = time.process_time()
                try:
                    scores = self._explain(row, self.model, inputs, targets)
                except RelpropError as error:
                    self.refused[row] = first_line(error)
                    continue
                seconds = (time.process_time() - started) / len(targets)
                maps, costs = list(scores.split(counts)), [seconds if first else math.nan]
            for unit, own, values in zip(units, maps, found, strict=True):
                values += self._measured(row, unit, own)
                values += [Value("", row, "seconds", cost) for cost in costs]
            if chance is not None:
                for values, falls, reaction in zip(
                    found, self._deletion(some, maps, chance), some, strict=True
                ):
                    named = zip(reaction.atoms, falls, strict=True)
                    values += [Value(f"{a.at}", row, "deletion", fall) for a, fall in named]
            if first < FEW and row not in COMPARISONS:
                steady = self._steady(row, some, maps)
                for values, checked in zip(found, steady, strict=True):
                    values += checked
        return found

    def _measured(self, row: str, unit: int, scores: Tensor) -> Iterator[Value]:
        reaction = self.reactions[unit]
        end = 1 + len(reaction.tokens)
        for one, atom in zip(scores, reaction.atoms, strict=True):
            share, best = measures(one[1:end], reaction, atom)
            for suffix in ("", f": {atom.known}"):
                yield Value(f"{atom.at}", row, f"share{suffix}", share)
                yield Value(f"{atom.at}", row, f"best reactant token{suffix}", best)

    def _steady(
        self, row: str, some: Sequence[Reaction], maps: Sequence[Tensor]
    ) -> Iterator[list[Value]]:
        """Of each reaction, how its maps compare with those of random weights, and of float64."""
        inputs, targets = self._inputs(*some)
        counts = [len(reaction.atoms) for reaction in some]
        fresh = self._explain(row, self._fresh, inputs, targets).split(counts)
        exact = self._explain(row, self.model, inputs, targets, precision="float64").split(counts)
        for reaction, single, other, double in zip(some, maps, fresh, exact, strict=True):
            tokens = slice(1, 1 + len(reaction.tokens))
            values = []
            for i in range(len(single)):
                rank = _correlation(single[i][tokens], other[i][tokens])
                change = _change(single[i], double[i])
                values.append(Value(f"{i}", row, "random weights", rank))
                values.append(Value(f"{i}", row, "stability", change))
            yield values

    def _left(self, some: Sequence[Reaction], masked: Sequence[Sequence[int]]) -> Tensor:
        """The true tokens' probabilities, (atoms,), with further reactant tokens masked."""
        inputs, targets = self._inputs(*some)
        for row, places in zip(inputs["input_ids"], masked, strict=True):
            row[[p + 1 for p in places]] = self._mask
        at, tokens = torch.tensor(targets).T
        with torch.no_grad():
            logits = self.model(**inputs).logits[torch.arange(len(at)), at]
        return logits.softmax(-1)[torch.arange(len(at)), tokens]

    def _deletion(
        self, some: Sequence[Reaction], maps: Sequence[Tensor], chance: Tensor
    ) -> list[list[float]]:
        """By reaction and atom: how much lower the true token's probability is when the best
        reactant tokens are masked than, by ``chance``, when random ones are."""
        best = [
            one[1 : reaction.arrow + 1].topk(REMOVED).indices.tolist()
            for reaction, scores in zip(some, maps, strict=True)
            for one in scores
        ]
        falls = (chance - self._left(some, best)).split([len(r.atoms) for r in some])
        return [fall.tolist() for fall in falls]

    def _by_chance(self, some: Sequence[Reaction], first: int) -> Tensor:
        """The true tokens' probabilities with random reactant tokens masked, the mean of some
        draws."""
        drawn = random.Random(self.seed * 100_003 + first)
        left = [
            self._left(
                some,
                [drawn.sample(range(r.arrow), REMOVED) for r in some for _ in r.atoms],
            )
            for _ in range(DRAWS)
        ]
        return torch.stack(left).mean(0)


def measures(scores: Tensor, reaction: Reaction, atom: Atom) -> tuple[float, float]:
    """Share and peak of a map over ``reaction.tokens``, of which only what is positive counts.

    Share: the sources' part of what all tokens but the masked one have; special tokens are not in
    the map. Peak: 1 if a source is the best of the reactants' atoms; of n that are equally good,
    the part that are sources.
    """
    heat = scores.double().clamp(min=0)
    heat[atom.at] = 0
    sources, places = list(atom.sources), reaction.reactant_atoms()
    total, best = float(heat.sum()), float(heat[places].max())
    if best <= 0:
        return 0.0, 0.0
    top = [p for p in places if float(heat[p]) == best]
    return float(heat[sources].sum()) / total, len(set(top) & set(sources)) / len(top)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's of two maps; NaN where one is constant."""
    if a.unique().numel() == 1 or b.unique().numel() == 1:
        return float("nan")
    return float(spearmanr(a.numpy(), b.numpy()).statistic)


def _change(single: Tensor, double: Tensor) -> float:
    """Largest difference of two maps ÷ the largest score; 0 where both are 0."""
    largest = float(double.abs().max())
    return float((single - double).abs().max()) / largest if largest else 0.0
