"""A model's folder whose config.json is none, or asks for more than a machine has."""

import json
import re
import threading

import pytest
import torch
import transformers
from torch.nn.modules import module as module_hooks

import relprop
from relprop.errors import InputError
from relprop.opening import loading


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"null", b'"a"', b"\xff", b"[" * 10_000])
def test_a_config_that_is_none_is_an_error_of_its_own(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError, match=r"config\.json in .* cannot be read: \w+Error: ."):
        relprop.explain(str(tmp_path), {"input_ids": torch.tensor([[1, 2]])}, 0)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Folders of small models, and what their config.json says."""
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 16}
    kinds = {
        "bert": (transformers.BertForSequenceClassification, transformers.BertConfig(**sizes)),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**sizes)),
    }
    found = {}
    for name, (kind, config) in kinds.items():
        folder = tmp_path_factory.mktemp(name)
        kind(config).save_pretrained(folder)
        found[name] = folder, json.loads((folder / "config.json").read_text())
    timm = tmp_path_factory.mktemp("timm")
    found["timm"] = timm, {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {}}
    return found


def refused(settings, name, changes):
    """What is said of the folder with other settings; it is put back."""
    folder, written = settings[name]
    before = dict(module_hooks._global_parameter_registration_hooks)
    (folder / "config.json").write_text(json.dumps({**written, **changes}))
    inputs = (
        torch.zeros(1, 3, 224, 224) if name == "timm" else {"input_ids": torch.tensor([[1, 2]])}
    )
    try:
        with pytest.raises(InputError) as error:
            relprop.explain(str(folder), inputs, 0)
    finally:
        (folder / "config.json").write_text(json.dumps(written))
    assert module_hooks._global_parameter_registration_hooks == before
    return str(error.value)


@pytest.mark.parametrize("count", [2 * 10**6, 10**9, 10**19, 10**400], ids=lambda n: len(str(n)))
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("bert", lambda n: {"num_hidden_layers": n}),
        ("bert", lambda n: {"num_labels": n}),
        ("llama", lambda n: {"num_hidden_layers": n, "layer_types": None}),
        ("timm", lambda n: {"model_args": {"depth": n}}),
        ("timm", lambda n: {"model_args": {"depths": [1, n]}}),
    ],
    ids=["bert layers", "bert labels", "llama layers", "timm depth", "timm depths"],
)
def test_settings_that_count_millions_are_refused_before_anything_is_made(
    settings, name, where, count, monkeypatch
):
    made = []
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda *a, **k: made.append(a))
    said = refused(settings, name, where(count))
    assert re.search(r"settings of .* ask for \w+=[\d^]+, more than 1000000\n  then", said)
    assert not made


@pytest.mark.parametrize("size", [10**10, 10**13])
@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size"])
def test_a_model_larger_than_memory_is_refused_while_nothing_is_allocated(
    settings, name, key, size
):
    said = refused(settings, name, {key: size})
    assert re.search(r"takes at least \S+ GB of memory, of which \S+ GB are free", said)


@pytest.mark.parametrize("name", ["bert", "timm"])
def test_layers_within_the_count_end_at_the_limit_of_tensors(settings, name, monkeypatch):
    monkeypatch.setattr(loading, "MOST_TENSORS", 100)
    layers = {"bert": {"num_hidden_layers": 900_000}, "timm": {"model_args": {"depth": 900_000}}}
    assert "asks for more than 100 parameters" in refused(settings, name, layers[name])


def test_a_long_context_is_no_count_and_other_threads_may_make_what_they_like(
    settings, monkeypatch
):
    folder, written = settings["llama"]
    (folder / "config.json").write_text(json.dumps({**written, "max_position_embeddings": 10**9}))
    monkeypatch.setattr(loading, "MOST_TENSORS", 100)
    made = []

    def elsewhere():
        made.append(torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(200)))

    with loading.bounded("x"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert made
    assert (
        relprop.explain(str(folder), {"input_ids": torch.tensor([[1, 2]])}, 0).scores.shape[1] == 2
    )
