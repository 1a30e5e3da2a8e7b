"""Parameter randomisation, class sensitivity, infidelity and max-sensitivity: cases whose answer
follows from algebra, and the shipped model."""

import copy

import pytest
import torch
from torch import nn

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.errors import InputError, OptionError
from relprop.evaluation import ClassSensitivity, Infidelity, MaxSensitivity, ParameterRandomization


@pytest.fixture(scope="module")
def scenes():
    return make_scenes(4, seed=5)


class TestParameterRandomization:
    def test_a_map_of_the_input_alone_stays_as_it_is(self, scenes):
        model = digit_scene_model()
        curve = ParameterRandomization(stages=3)(
            model, scenes.images, lambda m: scenes.images.flatten(1)
        )
        assert curve.similarity.shape == (4, 3)
        torch.testing.assert_close(curve.similarity, torch.ones(4, 3, dtype=torch.float64))

    def test_maps_of_the_model_change_and_the_model_does_not(self, scenes):
        model = digit_scene_model()
        before = copy.deepcopy(model.state_dict())
        metric = ParameterRandomization(stages=4)
        curve = metric(model, scenes.images, lambda m: relprop.explain(m, scenes.images, 3))
        assert curve.stages[0] == "norm" or curve.stages[0].startswith("blocks.3")
        assert curve.at[-1].abs() < 0.5 and curve.values.shape == (4,)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        again = metric(model, scenes.images, lambda m: relprop.explain(m, scenes.images, 3))
        assert torch.equal(curve.similarity, again.similarity)

    def test_from_the_output_down_cascading_and_tied_once(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.last = (
                    nn.Linear(4, 4),
                    nn.Linear(4, 4),
                    nn.Linear(4, 6),
                )
                self.second.weight = self.first.weight
                self.unused = nn.Linear(4, 4)

            def forward(self, x):
                return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

        torch.manual_seed(0)
        model, seen = Tied(), []
        curve = ParameterRandomization(stages=9)(
            model,
            torch.rand(2, 4),
            lambda m: seen.append(copy.deepcopy(m.state_dict())) or torch.rand(2, 4),
        )
        assert curve.stages == ("last", "second", "first")
        trained = seen[0]
        changed = [
            {n for n, v in state.items() if not torch.equal(v, trained[n])} for state in seen
        ]
        used = {n for n in trained if not n.startswith("unused")}
        assert changed[:2] == [set(), {"last.weight", "last.bias"}] and changed[3] == used
        assert changed[2] == used - {"first.bias"}  # the shared weight is randomised once, in both
        assert all(
            torch.equal(state[n].flatten().sort().values, trained[n].flatten().sort().values)
            for state in seen
            for n in trained
        )

    def test_content_and_refusals(self, scenes):
        model = digit_scene_model()
        maps, content = torch.rand(4, 5), torch.tensor([[1, 1, 1, 0, 0]] * 4)
        changing = iter([maps, maps * content + torch.rand(4, 5) * (1 - content)])
        curve = ParameterRandomization(stages=1)(
            model, scenes.images, lambda m: next(changing), content=content
        )
        torch.testing.assert_close(curve.similarity, torch.ones(4, 1, dtype=torch.float64))
        with pytest.raises(OptionError, match="stages=0"):
            ParameterRandomization(stages=0)
        with pytest.raises(InputError, match="no parameter"):
            ParameterRandomization()(nn.ReLU(), torch.rand(2, 3), lambda m: torch.rand(2, 3))


class TestClassSensitivity:
    def test_known_ranks(self):
        a = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
        b = torch.tensor([[10.0, 20.0, 30.0], [3.0, 1.0, 2.0]])
        torch.testing.assert_close(
            ClassSensitivity()(a, b), torch.tensor([1.0, -0.5], dtype=torch.float64)
        )

    def test_of_explanations_the_class_agnostic_is_one(self, scenes):
        both = [
            relprop.explain_many(
                digit_scene_model(),
                scenes.images,
                [scenes.digits[:, 0], scenes.digits[:, 1]],
                method=m,
            )
            for m in ("rollout", "transformer_attribution")
        ]
        agnostic, specific = (ClassSensitivity()(*pair) for pair in both)
        torch.testing.assert_close(agnostic, torch.ones(4, dtype=torch.float64))
        assert specific.mean() < 0.8

    def test_constant_maps_are_named(self):
        with pytest.warns(UserWarning, match="1 of 2 samples"):
            found = ClassSensitivity()(
                torch.tensor([[1.0, 1.0], [1.0, 2.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0]])
            )
        assert found[0].isnan() and abs(found[1] - 1) < 1e-12


class TestInfidelity:
    def test_a_linear_models_weights_are_perfect(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
        images, target = torch.rand(5, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
        weights = model[1].weight.detach()[target].view(5, 3, 2, 2)
        metric = Infidelity(radius=0.5, normalize=False)
        assert metric(model, images, weights, target).max() < 1e-24
        off = metric(model, images, weights + 0.1, target)
        noise = (
            torch.randn(
                (10, 3, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64
            )
            * 0.5
        )
        torch.testing.assert_close(off, ((0.1 * noise).flatten(1).sum(1) ** 2).mean().expand(5))
        assert (
            Infidelity(radius=0.5)(model, images, 7 * weights, target).max() < 1e-12
        )  # the best factor is found

    def test_no_number_depends_on_the_batch(self, scenes):
        model = digit_scene_model()
        e = relprop.explain(model, scenes.images, scenes.digits[:, 0])
        together = Infidelity()(model, scenes.images, e, scenes.digits[:, 0])
        alone = Infidelity()(model, scenes.images[2:3], e.heatmap()[2:3], scenes.digits[2:3, 0])
        torch.testing.assert_close(together[2:3], alone, rtol=1e-3, atol=1e-9)

    def test_refusals(self):
        with pytest.raises(InputError, match="floating point"):
            Infidelity()(
                nn.Identity(), torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3), [0, 0]
            )
        with pytest.raises(InputError, match="height and width"):
            Infidelity()(nn.Identity(), torch.ones(2, 3, 4, 4), torch.ones(2, 5, 5), [0, 0])
        with pytest.raises(OptionError, match="samples=0"):
            Infidelity(samples=0)


class TestMaxSensitivity:
    def test_of_the_identity_map(self):
        """φ(x) = x: the move is the noise itself, over ‖x‖."""
        x = torch.rand(3, 6, dtype=torch.float64) + 1
        found = MaxSensitivity(samples=4, radius=0.1)(lambda inputs, target: inputs, x, [0, 1, 2])
        noise = 0.1 * (
            2 * torch.rand((4, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            - 1
        )
        torch.testing.assert_close(found, noise.norm(dim=1).max() / x.norm(dim=1))

    def test_a_constant_map_does_not_move(self):
        found = MaxSensitivity()(
            lambda inputs, target: torch.ones(len(inputs), 4) * target[:, None].clamp(min=1),
            torch.rand(2, 3),
            [1, 2],
        )
        assert torch.equal(found, torch.zeros(2, dtype=torch.float64))

    def test_of_explanations(self, scenes):
        model = digit_scene_model()
        found = MaxSensitivity(samples=2)(
            lambda x, t: relprop.explain(model, x, t), scenes.images, scenes.digits[:, 0]
        )
        assert found.shape == (4,) and (found > 0).all() and found.isfinite().all()
        alone = MaxSensitivity(samples=2)(
            lambda x, t: relprop.explain(model, x, t), scenes.images[1:2], scenes.digits[1:2, 0]
        )
        torch.testing.assert_close(found[1:2], alone, rtol=1e-3, atol=1e-6)
