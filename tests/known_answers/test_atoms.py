"""Reactions that are made from templates: what comes from where, and that the real model's atoms
are found."""

import pytest
import torch

from examples.reaction_model import reaction_tokens
from examples.wheels import wheel
from relprop.errors import InputError, OptionError
from tools.known_answers.atoms import (
    TEMPLATES,
    Atom,
    Atoms,
    Reaction,
    draw_reactions,
    element,
    make_reaction,
    measures,
    symmetry_classes,
)

BY_NAME = {template.name: template for template in TEMPLATES}


def traced(reaction):
    """(the product's token, the reactants' tokens it comes from, how that is known) per atom."""
    return [
        (reaction.tokens[a.at], "".join(reaction.tokens[s] for s in a.sources), a.sources, a.known)
        for a in reaction.atoms
    ]


def test_a_reaction_is_split_into_tokens():
    assert reaction_tokens("C[N+](=O)Br.Cl>>c1%12n") == [
        *("C", "[N+]", "(", "=", "O", ")", "Br", ".", "Cl", ">>", "c", "1", "%12", "n")
    ]
    with pytest.raises(InputError, match="not written as SMILES"):
        reaction_tokens("C C")


def test_the_element_of_a_token():
    assert [element(t) for t in ("n", "[nH]", "[N+]", "Cl", "[Si]", "(", "1")] == [
        *("N", "N", "N", "CL", "SI", "", "")
    ]


@pytest.mark.parametrize(
    "molecule, alike",
    [
        ("CC(C)(C)O", [{0, 3, 6}]),
        ("Fc1ccccc1", [{3, 7}, {4, 6}]),
        ("Fc1cccnc1", []),
        ("CCC", [{0, 2}]),
        ("C=CC", []),
        ("O.O", []),  # two molecules
    ],
)
def test_symmetry(molecule, alike):
    classes = symmetry_classes(reaction_tokens(molecule))
    groups = [{i for i, c in enumerate(classes) if c == number} for number in set(classes)]
    assert [group for group in groups if len(group) > 1] == alike


def test_an_ester():
    made = make_reaction(BY_NAME["ester formation"], {"Rest": "CF", "Alkyl": "CSC"}, ["CO"])
    assert made.text == "CO.CSCO.O=C(O)CF>>CSCOC(=O)CF"
    assert traced(made) == [
        ("C", "C", (3,), "fragment"),
        ("S", "S", (4,), "element"),
        ("C", "C", (5,), "fragment"),
        ("O", "O", (6,), "fragment"),  # the alcohol's
        ("C", "C", (10,), "fragment"),  # the two oxygens of an acid are not asked for
        ("C", "C", (14,), "fragment"),
        ("F", "F", (15,), "element"),
    ]


def test_a_suzuki_coupling():
    drawn = {"Head": "Fc1ccc(", "Tail": ")cc1", "Aryl": "c1cccnc1"}
    made = make_reaction(BY_NAME["Suzuki coupling"], drawn)
    assert made.text == "Fc1ccc(Br)cc1.OB(O)c1cccnc1>>Fc1ccc(-c2cccnc2)cc1"
    by_token = {token: (sources, known) for token, _, sources, known in traced(made)}
    assert by_token["F"] == ((0,), "element") and by_token["n"] == ((23,), "element")
    assert traced(made)[2][2] == (3, 10)  # both sides of the fluorinated ring
    assert len(made.atoms) == 13


def test_reactions_are_drawn_by_a_seed():
    drawn = draw_reactions(16, 3)
    assert drawn == draw_reactions(16, 3) != draw_reactions(16, 4)
    assert len({reaction.text for reaction in drawn}) == 16
    for reaction in drawn:
        assert len(reaction.atoms) <= 5
        for atom in reaction.atoms:
            assert atom.at > reaction.arrow > max(atom.sources)
            assert {reaction.tokens[s] for s in atom.sources} == {reaction.tokens[atom.at]}


def test_measures():
    reaction = Reaction(tuple(reaction_tokens("CO>>CO")), 2, ())
    atom = Atom(4, (1,), "element")
    assert measures(torch.tensor([1.0, 3, -5, 4, 9]), reaction, atom) == (3 / 8, 1)
    assert measures(torch.tensor([1.0, 1, 0, 0, 0]), reaction, atom) == (1 / 2, 1 / 2)
    assert measures(torch.tensor([-1.0, 0, 0, 2, 0]), reaction, atom) == (0, 0)


@pytest.mark.slow
def test_the_real_model():
    try:
        wheel("rxnmapper")
    except OptionError as missing:
        pytest.skip(str(missing))
    asked = ("gae", "attnlrp", "no such method")
    study = Atoms(8, 5, {name: {"method": name} for name in asked})
    assert sum(len(reaction.atoms) for reaction in study.reactions) > 0.9 * study.asked
    numbers = [value for unit in range(2, 6) for value in study(unit)]
    assert list(study.refused) == ["no such method"]

    def mean(row, column):
        found = [v.number for v in numbers if (v.row, v.column) == (row, column)]
        return sum(found) / len(found)

    assert mean("mapping head", "best reactant token") > 0.9
    assert mean("gae", "share") > 2 * mean("uniform", "share")
    assert mean("attnlrp", "best reactant token") > 0.7
    assert mean("gae", "deletion") > mean("random", "deletion")
