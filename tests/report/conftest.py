"""A real Chromium, and the reports that are looked at in it. ``RELPROP_BROWSER=required`` (CI sets
it) makes a missing browser a failure."""

from dataclasses import dataclass, field, replace

import pytest
import torch

import relprop
from relprop.demo.scenes import make_scenes
from relprop.explanation import Explanation
from tests.common.models import build, sample
from tests.common.sizes import clip, digits


@dataclass
class Made:
    """A report with what it was made from."""

    path: object
    explanations: list[Explanation]
    noise: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Two digit scenes: the trained model explained for both digits, by rollout for the first, by a
    method at the input without anything kept."""
    torch.manual_seed(0)
    model, made = digits(), make_scenes(2, seed=8)
    first, second = (made.digits[:, k].tolist() for k in range(2))
    explanations = relprop.explain_many(
        model, made.images, [first, second], keep=("blocks", "matrix")
    )
    explanations += [
        relprop.explain(model, made.images, first, method="rollout", keep="matrix"),
        relprop.explain(model, made.images, first, method="input_gradient"),
    ]
    path = tmp_path_factory.mktemp("report") / "scenes.html"
    return Made(
        relprop.report(explanations, path, model=model, pictures=made.images, title="Two digits"),
        explanations,
    )


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """197 tokens, 12 layers of 12 heads: as many numbers as a ViT-Base has, in a model of few
    weights."""
    import timm

    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        embed_dim=48, depth=12, num_heads=12, mlp_ratio=1.0, num_classes=5
    ).eval()
    images = torch.rand(1, 3, 224, 224)
    explanation = relprop.explain(model, images, target=1, keep=("blocks", "matrix"))
    path = tmp_path_factory.mktemp("report") / "large.html"
    return Made(explanation.to_html(path, model=model, pictures=images), [explanation])


HOSTILE = [
    "<script>document.title='x'</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"'`&amp;&lt;",
    "\u202eevil\u202c ‮ שלום مرحبا",
    "\x00\x07\x1b[31m\r\n\t\u2028",
    "a" * 10_000,
]


def worded(tokens):
    """A small model of text, whose five tokens (and one of the model's own) are called
    ``tokens``."""
    explanation = relprop.explain(
        build(ids=True, heads=2, dtype=torch.float32),
        sample(ids=True, batch=1),
        target=1,
        keep=("blocks", "matrix"),
    )
    ((name, stream),) = explanation.streams.items()
    return replace(
        explanation, streams={name: replace(stream, tokens=[tokens[: stream.scores.shape[1]]])}
    )


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "hostile.html"
    explanation = replace(
        worded(HOSTILE), target=("</script><script>alert(1)</script>",), method="<b>m</b>"
    )
    return Made(
        relprop.report(
            explanation,
            path,
            title="</title><script>alert(2)</script>\u202e",
            code="</pre><script>alert(3)</script>",
        ),
        [explanation],
    )


@pytest.fixture(scope="session")
def friendly(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "friendly.html"
    explanation = worded(["the", "film", "was", "very", "good", "."])
    return Made(relprop.report(explanation, path), [explanation])


@pytest.fixture(scope="session")
def windows(tmp_path_factory):
    """A Swin: its maps are of windows, so that neither their queries nor their keys are the image's
    tokens."""
    import timm

    torch.manual_seed(0)
    model = timm.models.SwinTransformer(
        img_size=32,
        patch_size=2,
        embed_dim=8,
        depths=(2, 2),
        num_heads=(2, 2),
        window_size=4,
        num_classes=3,
    ).eval()
    images = torch.rand(1, 3, 32, 32)
    explanation = relprop.explain(model, images, 1, keep="blocks")
    return Made(
        explanation.to_html(tmp_path_factory.mktemp("report") / "windows.html", pictures=images),
        [explanation],
    )


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A small CLIP: two explained inputs, a text and a picture."""
    torch.manual_seed(0)
    ids = torch.tensor([[48, 5, 6, 7, 8, 9, 49]])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.rand(1, 3, 16, 16),
    }
    explanation = relprop.explain(clip(), inputs, relprop.targets.similarity(), keep="blocks")
    return Made(
        explanation.to_html(
            tmp_path_factory.mktemp("report") / "pairs.html", pictures=inputs["pixel_values"]
        ),
        [explanation],
    )


@pytest.fixture(scope="session")
def pixels(tmp_path_factory):
    """A model without attention, explained at its 224×160 pixels."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 9, stride=4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 54 * 38, 3),
    )
    images = torch.rand(1, 3, 224, 160)
    explanation = relprop.explain(model, images, 1, method="lrp")
    return Made(
        explanation.to_html(tmp_path_factory.mktemp("report") / "pixels.html", pictures=images),
        [explanation],
    )


@pytest.fixture
def opened(browser):
    """Opens a report; at the end nothing may have been said on the console, blocked by the policy,
    or asked of any network."""
    contexts, noise = [], []

    def open_report(made, **settings):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | settings))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                noise.append(request.url[:99])
                if not request.url.startswith("data:") and request.url != made.path.as_uri()
                else None
            ),
        )
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => "
            "console.error('blocked', event.violatedDirective))"
        )
        page.goto(made.path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert noise == []
