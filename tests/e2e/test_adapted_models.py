"""Models that other libraries have changed: PEFT, accelerate, gradient checkpointing; and with
heads of one's own.

Weights are small and seeded; nothing is downloaded. Where the change is undone by the library
itself, the two explanations are compared.
"""

import warnings

import accelerate
import peft
import pytest
import timm
import torch
import transformers
from torch import nn

import relprop
from tests.common.models import closeness
from tests.common.rows import diagonal, marked
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is deprecated and will be removed in v6:FutureWarning",
    "ignore:None of the inputs have requires_grad=True",
)
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 40,
    "max_position_embeddings": 16,
}


def randomised(model):
    """Weights at which every part of the model matters."""
    torch.manual_seed(1)
    for name, p in model.named_parameters():
        if p.is_floating_point():
            nn.init.normal_(p, mean=float("norm" in name.lower() and "weight" in name), std=0.3)
    return model.eval()


def classifier():
    return randomised(
        transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=3))
    )


def generator(**changes):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, **changes)
    return randomised(transformers.LlamaForCausalLM(config))


def inputs():
    torch.manual_seed(2)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": torch.randint(5, 40, (2, 7)), "attention_mask": mask}


def lora(model, **changes):
    torch.manual_seed(3)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, init_lora_weights=False, **changes)
    ).eval()


def explained(model, target=1, **options):
    """The explanation of a model that is the same before and after."""
    x = inputs()
    before = snapshot(model, list(x.values()))
    e = relprop.explain(model, x, target, **options)
    assert_undisturbed(before, snapshot(model, list(x.values())))
    assert torch.isfinite(e.scores).all() and e.scores.any() and e.ledger.balanced(1e-5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logits = model(**x).logits
    assert (
        closeness(
            e.output,
            logits[:, target]
            if logits.dim() == 2
            else torch.stack([logits[i, p, c] for i, (p, c) in enumerate(e.target)]),
        )
        <= 1e-4
    )
    return e


# PEFT


def test_lora_wrapped_and_merged():
    model = lora(classifier().double(), task_type="SEQ_CLS", target_modules=["query", "value"])
    wrapped = explained(model)
    assert closeness(wrapped.output, explained(classifier().double()).output) > 1e-3
    assert wrapped.tokens and not wrapped.content[1, -1], "the wrapped model's config is read"
    assert closeness(relprop.explain(model, inputs(), "LABEL_1").scores, wrapped.scores) == 0
    model.merge_adapter()
    merged = explained(model)
    assert closeness(merged.output, wrapped.output) <= 1e-12
    model.unmerge_adapter()
    assert closeness(explained(model).scores, wrapped.scores) <= 1e-9
    assert closeness(explained(model.merge_and_unload()).scores, merged.scores) <= 1e-9


def output(model):
    return relprop.explain(model, inputs(), 1).output


def test_lora_switched_off_and_between_adapters():
    model = lora(classifier(), task_type="SEQ_CLS", target_modules=["query"])
    with_first = output(model)
    with model.disable_adapter():
        without = output(model)
    assert closeness(without, output(classifier())) <= 1e-6
    torch.manual_seed(9)
    model.add_adapter(
        "second",
        peft.LoraConfig(
            r=2, init_lora_weights=False, task_type="SEQ_CLS", target_modules=["query"]
        ),
    )
    model.set_adapter("second")
    with_second = explained(model).output
    model.set_adapter("default")
    assert closeness(with_first, with_second) > 1e-3
    assert closeness(output(model), with_first) <= 1e-6


ADAPTERS = {
    "injected": lambda: peft.inject_adapter_in_model(
        peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["value"]), classifier()
    ),
    "DoRA": lambda: lora(classifier(), use_dora=True, target_modules=["query"]),
    "IA3": lambda: peft.get_peft_model(
        classifier(),
        peft.IA3Config(
            target_modules=["value", "output.dense"],
            feedforward_modules=["output.dense"],
            init_ia3_weights=False,
        ),
    ),
    "trained heads": lambda: lora(
        classifier(), task_type="SEQ_CLS", target_modules=["query"], modules_to_save=["classifier"]
    ),
    "prompt tuning": lambda: peft.get_peft_model(
        classifier(), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    ),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_other_adapters(name):
    explained(ADAPTERS[name]().eval())


def test_virtual_tokens_are_no_content():
    e = explained(ADAPTERS["prompt tuning"]().eval())
    assert (
        e.source.tolist() == [-1] * 3 + list(range(7))
        and not e.content[:, :3].any()
        and e.content[0, 3:].all()
    )


@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(
            task_type="CAUSAL_LM", r=2, init_lora_weights=False, target_modules=["q_proj", "v_proj"]
        ),
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    ],
    ids=["LoRA", "prefix tuning"],
)
def test_an_adapted_generator_explains_its_next_token(config):
    e = explained(peft.get_peft_model(generator(), config).eval(), target=None)
    assert [p for p, _ in e.target] == [6, 4]


# accelerate


def test_dispatched_to_one_device():
    model = accelerate.dispatch_model(classifier(), device_map={"": "cpu"}, force_hooks=True)
    assert hasattr(model, "_hf_hook")
    assert closeness(explained(model).scores, explained(classifier()).scores) <= 1e-6


def test_prepared_for_mixed_precision():
    """``Accelerator.prepare`` puts an autocast around ``forward``: its casts are in the graph."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    model = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(classifier())
    x = inputs()
    e = relprop.explain(model, x, 1)
    exact = explained(classifier())
    with torch.no_grad():
        own = model(**x).logits[:, 1]
    assert closeness(e.output, own) <= 2 * torch.finfo(torch.bfloat16).eps
    assert (
        1e-6 < closeness(e.output, exact.output) <= 0.1
        and e.scores.dtype == torch.float32
        and e.tokens
    )
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


# checkpointing


@pytest.mark.parametrize("reentrant", marked([True, False], ("True",)))
def test_gradient_checkpointing(reentrant):
    model = classifier()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    x = inputs()
    assert (
        closeness(relprop.explain(model, x, 1).scores, explained(classifier()).scores) <= 1e-6
        and model.training
    )


def test_gradient_checkpointing_in_timm():
    def made():
        return randomised(
            timm.models.VisionTransformer(
                img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
            )
        )

    x = torch.randn(2, 3, 16, 16)
    model = made().train()
    model.set_grad_checkpointing()
    assert (
        closeness(relprop.explain(model, x, 1).scores, relprop.explain(made(), x, 1).scores) <= 1e-6
    )


# heads and halves of the user's own


class Stars(transformers.BertPreTrainedModel):
    """A sub-class with a head of its own and an output of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.bert, self.a, self.b = (
            transformers.BertModel(config),
            nn.Linear(config.hidden_size, 8),
            nn.Linear(8, 5),
        )
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return {
            "stars": self.b(
                torch.tanh(
                    self.a(
                        self.bert(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
                    )
                )
            )
        }


class Around(nn.Module):
    """A plain module around a library's model."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = classifier().bert, nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        hidden = self.backbone(input_ids, attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(hidden.dtype)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


@pytest.mark.parametrize(
    "make",
    [lambda: Stars(transformers.BertConfig(**SIZES)), Around],
    ids=["sub-class", "module around"],
)
def test_heads_of_ones_own(make):
    model, x = randomised(make()), inputs()
    e = relprop.explain(model, x, 2)
    own = model(**x)
    assert (
        closeness(e.output, (own if torch.is_tensor(own) else own["stars"])[:, 2].detach()) <= 1e-5
    )
    assert e.scores.any() and not e.scores[1, -2:].any()


@pytest.mark.parametrize(
    ("tied", "dtype"), diagonal((True, False), (torch.bfloat16, torch.float16))
)
def test_half_precision_generators(dtype, tied):
    model, x = generator(tie_word_embeddings=tied).to(dtype), inputs()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    e = relprop.explain(model, x, keep="blocks")
    assert e.scores.dtype == torch.float32 and torch.isfinite(e.scores).all() and e.scores.any()
    assert all(
        torch.isfinite(b.gradient).all() and b.relevance.dtype == torch.float32 for b in e.blocks
    )
