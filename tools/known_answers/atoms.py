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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple

import torch
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
from tools.known_answers.blocks import InBlocks
from tools.known_answers.rows import FLOORS, INTEGRATED, METHODS, noise
from tools.known_answers.study import Column, Value

EXTRA = 30
"""Units that ``deletion`` is measured on."""
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


DEFAULT = "transformer_attribution"
ROWS: Mapping[str, Mapping[str, Any]] = METHODS | {
    f"{DEFAULT}, stable": {"method": DEFAULT, "rules": "stable"},
    f"{DEFAULT}, no gradient": {"method": DEFAULT, "use_gradient": False},
    "integrated_gradients": INTEGRATED,
}
COMPARISONS = ("mapping head", "same element", "position", *FLOORS)
"""Rows that are no methods. ``mapping head`` looks into the model where its authors found the
mapping, ``same element`` knows the true token; the rest know nothing."""


@dataclass(eq=False)
class Atoms(InBlocks):
    """The study: a unit is a reaction, its samples are masked atoms that the model fills in right
    (``asked`` says how many there were before)."""

    count: int = 150
    seed: int = 0
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: ROWS)
    at_once: ClassVar[int] = 10  # padded to one length
    name: ClassVar[str] = "atoms"
    title: ClassVar[str] = "The atom of the reactants that a product's atom comes from"
    units: ClassVar[str] = "reactions"
    samples: ClassVar[str] = "atoms"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share", True, 100),
        Column("best reactant token", True, 100),
        *(Column(f"share: {known}", True, 100) for known in MOST),
        *(Column(f"best reactant token: {known}", True, 100) for known in MOST),
        Column("deletion", True, 100),
        Column("random weights", False),
        Column("stability", False),
        Column("seconds", False),
    )

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *COMPARISONS)

    @cached_property
    def model(self) -> Any:
        return reaction_model()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        return reaction_vocabulary()

    @cached_property
    def eager(self) -> Any:
        model = copy.deepcopy(self.model)
        model.set_attn_implementation("eager")
        return model

    @cached_property
    def drawn(self) -> list[Reaction]:
        return draw_reactions(self.count, self.seed)

    @property
    def asked(self) -> int:
        return sum(len(reaction.atoms) for reaction in self.drawn)

    @cached_property
    def width(self) -> int:
        return 2 + max(len(r.tokens) for r in self.drawn)

    @cached_property
    def reactions(self) -> list[Reaction]:
        """With those of their atoms alone that the model fills in right, if there are any."""
        return [kept for r in self.drawn if r.atoms and (kept := self.right(r)).atoms]

    def right(self, reaction: Reaction) -> Reaction:
        inputs, targets = self.inputs([reaction])
        with torch.no_grad():
            logits = self.model(**inputs).logits
        right = [int(logits[i, at].argmax()) == token for i, (at, token) in enumerate(targets)]
        atoms = tuple(a for a, is_right in zip(reaction.atoms, right, strict=True) if is_right)
        return Reaction(reaction.tokens, reaction.arrow, atoms)

    def inputs(
        self, reactions: Sequence[Reaction]
    ) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
        """Ids, a row per atom with that atom masked, padded; and each atom's place and true
        token."""
        rows, targets, lengths = list[Tensor](), list[tuple[int, int]](), list[int]()
        for reaction in reactions:
            ids = reaction_ids(reaction.tokens, self.vocabulary)
            for atom in reaction.atoms:
                at = atom.at + 1
                row = torch.full((self.width,), self.vocabulary["[PAD]"])
                row[: len(ids)] = ids
                row[at] = self.vocabulary["[MASK]"]
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

    def names(self, unit: int) -> list[str]:
        return [str(atom.at) for atom in self.reactions[unit].atoms]

    def of(self, units: range) -> list[Reaction]:
        return [self.reactions[unit] for unit in units]

    def explained(self, model: Any, units: range, call: Mapping[str, Any]) -> list[Tensor]:
        """(atoms, the reaction's tokens) of each."""
        some = self.of(units)
        inputs, targets = self.inputs(some)
        scores = relprop.explain(model, inputs, list(targets), progress=False, **call).scores
        split = scores.split([len(reaction.atoms) for reaction in some])
        return [one[:, 1 : 1 + len(r.tokens)] for one, r in zip(split, some, strict=True)]

    def comparisons(self, units: range) -> Iterator[tuple[str, list[Tensor]]]:
        for row in COMPARISONS:
            make = getattr(self, f"_{row.replace(' ', '_')}")
            yield row, [make(unit, self.reactions[unit]) for unit in units]

    def _uniform(self, unit: int, reaction: Reaction) -> Tensor:
        return torch.ones(len(reaction.atoms), len(reaction.tokens))

    def _random(self, unit: int, reaction: Reaction) -> Tensor:
        return noise(self.seed * 100_003 + unit, len(reaction.atoms), len(reaction.tokens))

    def _mapping_head(self, unit: int, reaction: Reaction) -> Tensor:
        layer, head = MAPPING_HEAD
        inputs, targets = self.inputs([reaction])
        with torch.no_grad():
            attention = self.eager(**inputs, output_attentions=True).attentions[layer][:, head]
        rows = [one[at] for one, (at, _) in zip(attention, targets, strict=True)]
        return torch.stack(rows)[:, 1 : 1 + len(reaction.tokens)]

    def _same_element(self, unit: int, reaction: Reaction) -> Tensor:
        token = reaction.tokens
        return self._marked(
            reaction,
            lambda atom: [p for p in reaction.reactant_atoms() if token[p] == token[atom.at]],
        )

    def _position(self, unit: int, reaction: Reaction) -> Tensor:
        """As far along the reactants as the atom is along the product."""
        left, right = reaction.arrow - 1, max(1, len(reaction.tokens) - reaction.arrow - 2)

        def far(atom: Atom) -> list[int]:
            there = (atom.at - reaction.arrow - 1) / right
            return [min(reaction.reactant_atoms(), key=lambda p: abs(p / left - there))]

        return self._marked(reaction, far)

    def _marked(self, reaction: Reaction, places: Callable[[Atom], list[int]]) -> Tensor:
        scores = torch.zeros(len(reaction.atoms), len(reaction.tokens))
        for one, atom in zip(scores, reaction.atoms, strict=True):
            one[places(atom)] = 1
        return scores

    def measured(self, units: range, row: str, maps: list[Tensor]) -> Iterator[list[Value]]:
        falls = iter(self.deletion(units, maps) if units.start < EXTRA else ())
        for reaction, own in zip(self.of(units), maps, strict=True):
            found = []
            for atom, one in zip(reaction.atoms, own, strict=True):
                share, best = measures(one, reaction, atom)
                numbers = {"share": share, "best reactant token": best}
                numbers |= {f"{column}: {atom.known}": n for column, n in numbers.items()}
                numbers["deletion"] = next(falls, math.nan)
                found += [Value(f"{atom.at}", row, column, n) for column, n in numbers.items()]
            yield found

    def deletion(self, units: range, maps: list[Tensor]) -> list[float]:
        """By atom: how much lower the true token's probability is when the best reactant tokens
        are masked than when random ones are."""
        best = [
            one[: reaction.arrow].topk(REMOVED).indices.tolist()
            for reaction, own in zip(self.of(units), maps, strict=True)
            for one in own
        ]
        falls: list[float] = (self.by_chance(units) - self.left(units, best)).tolist()
        return falls

    def left(self, units: range, masked: Sequence[Sequence[int]]) -> Tensor:
        """The true tokens' probabilities, (atoms,), with further reactant tokens masked."""
        inputs, targets = self.inputs(self.of(units))
        for row, places in zip(inputs["input_ids"], masked, strict=True):
            row[[p + 1 for p in places]] = self.vocabulary["[MASK]"]
        at, tokens = torch.tensor(targets).T
        with torch.no_grad():
            logits = self.model(**inputs).logits[torch.arange(len(at)), at]
        return logits.softmax(-1)[torch.arange(len(at)), tokens]

    @cache  # noqa: B019 (one study)
    def by_chance(self, units: range) -> Tensor:
        """The true tokens' probabilities with random reactant tokens masked, the mean of some
        draws."""
        drawn = random.Random(self.seed * 100_003 + units.start)
        atoms = [r.arrow for r in self.of(units) for _ in r.atoms]
        draws = [[drawn.sample(range(arrow), REMOVED) for arrow in atoms] for _ in range(DRAWS)]
        return torch.stack([self.left(units, masked) for masked in draws]).mean(0)


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
