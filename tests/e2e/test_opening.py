"""Pipelines, folders and ids in place of a module and tensors: the same explanation as by hand, and
one clear sentence where nothing can be opened.

Every model is made here, saved where it is needed, and nothing is downloaded; ids are asked for
with the hub switched off.
"""

import json
import re
import shutil

import huggingface_hub
import numpy as np
import PIL.Image
import pytest
import safetensors.torch
import timm
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import pipeline

import relprop
from relprop.errors import InputError, OptionError
from tests.common.models import closeness
from tests.common.rows import marked
from tests.e2e.test_adapted_models import SIZES, randomised
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a film was good bad really not This example "
    "is about sport art . one two"
).split()
TEXTS = ["the film was really good .", "bad film"]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


def tokenizer(special=True, **changes):
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(PIECES)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        made.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **(names | changes))


def bert(kind=transformers.BertForSequenceClassification, **changes):
    return randomised(kind(transformers.BertConfig(**SIZES, pad_token_id=0, **changes)))


def classifier():
    return bert(id2label=NLI, label2id={v: k for k, v in NLI.items()})


def llama():
    return randomised(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, pad_token_id=0))
    )


def vision():
    sizes = {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
    return randomised(
        transformers.ViTForImageClassification(
            transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=3)
        )
    )


def clip():
    text = {**SIZES, "eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    picture = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 16,
        "patch_size": 8,
    }
    return randomised(
        transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=picture, projection_dim=8)
        )
    )


IMAGES = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
CROPPED = transformers.CLIPImageProcessor(
    size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
)


def picture(seed=0):
    return PIL.Image.fromarray(
        np.random.RandomState(seed).randint(0, 255, (20, 30, 3), dtype=np.uint8)
    )


def same(e, f):
    return (
        closeness(e.scores, f.scores) <= 1e-6
        and closeness(e.output, f.output) <= 1e-6
        and e.scores.any()
    )


# pipelines


@pytest.mark.parametrize(
    "given",
    [TEXTS[0], TEXTS, {"text": "the film", "text_pair": "a art"}],
    ids=["a text", "texts", "a pair"],
)
def test_text_classification(given):
    model, reads = classifier(), tokenizer()
    pipe = pipeline("text-classification", model=model, tokenizer=reads)
    by_hand = (
        reads(**given, return_tensors="pt")
        if isinstance(given, dict)
        else reads(given, return_tensors="pt", padding=isinstance(given, list))
    )
    before, calls = snapshot(model, []), pipe.call_count
    e = relprop.explain(pipe, given, "neutral")
    assert_undisturbed(before, snapshot(model, []))
    assert pipe.call_count == calls and pipe.tokenizer is reads and "run_single" not in vars(pipe)
    f = relprop.explain(model, by_hand, "neutral")
    assert (
        same(e, f)
        and e.tokens == f.tokens
        and e.content.equal(f.content)
        and e.words() == f.words()
    )
    assert list(e.target) == [1] * len(e.scores)


def test_a_pipeline_takes_ready_tensors_and_options_of_its_own():
    model, reads = classifier(), tokenizer()
    pipe = pipeline("text-classification", model=model, tokenizer=reads)
    ready = reads(TEXTS[0], return_tensors="pt")
    assert same(relprop.explain(pipe, ready, 0), relprop.explain(model, ready, 0))
    cut = relprop.explain(pipe, {"inputs": TEXTS[0], "truncation": True, "max_length": 4}, 0)
    assert cut.tokens == [["[CLS]", "the", "film", "[SEP]"]]
    assert [e.target for e in relprop.explain_many(pipe, TEXTS[0], [0, 2])] == [(0,), (2,)]
    assert relprop.trace(pipe, TEXTS[0]).inputs == ("input_ids", "attention_mask")


def test_zero_shot_classification_is_one_sample_per_label():
    pipe = pipeline("zero-shot-classification", model=classifier(), tokenizer=tokenizer())
    e = relprop.explain(
        pipe,
        {"sequences": "the film was good", "candidate_labels": ["sport", "really art"]},
        "entailment",
    )
    assert [[t for t in row if t != "[PAD]"][-5:-1] for row in e.tokens] == [
        ["example", "is", "sport", "."],
        ["is", "really", "art", "."],
    ]
    scores = dict(
        zip(
            *(
                pipe("the film was good", candidate_labels=["sport", "really art"])[k]
                for k in ("labels", "scores")
            ),
            strict=True,
        )
    )
    share = e.output.softmax(0)
    assert closeness(share, torch.tensor([scores["sport"], scores["really art"]])) <= 1e-5


def test_token_classification():
    model, reads = bert(transformers.BertForTokenClassification, num_labels=3), tokenizer()
    pipe = pipeline("token-classification", model=model, tokenizer=reads)
    e = relprop.explain(pipe, TEXTS[0], (3, 1))
    assert same(e, relprop.explain(model, reads(TEXTS[0], return_tensors="pt"), (3, 1)))
    assert [word for word, _ in e.words()] == TEXTS[0].split()


def test_fill_mask_explains_the_likeliest_word():
    pipe = pipeline("fill-mask", model=bert(transformers.BertForMaskedLM), tokenizer=tokenizer())
    e = relprop.explain(
        pipe, "the film was [MASK]", relprop.targets.token(tokenizer=pipe.tokenizer)
    )
    best = pipe("the film was [MASK]", top_k=1)[0]
    logits = pipe.model(**pipe.tokenizer("the film was [MASK]", return_tensors="pt")).logits
    assert closeness(e.output, logits[:, 4, best["token"]].detach()) <= 1e-5


def test_text_generation_explains_the_next_token():
    model, reads = llama(), tokenizer(special=False, padding_side="left")
    pipe = pipeline("text-generation", model=model, tokenizer=reads)
    e = relprop.explain(pipe, ["the film was", "bad"])
    assert e.tokens == [
        ["the", "film", "was"],
        ["[PAD]", "[PAD]", "bad"],
    ] and e.content.tolist() == [[True] * 3, [False, False, True]]
    with torch.no_grad():
        logits = model(**reads(["the film was", "bad"], return_tensors="pt", padding=True)).logits
    assert closeness(e.output, logits[:, -1].amax(-1)) <= 1e-5 and not e.scores[1, :2].any()


@pytest.mark.parametrize("dtype", marked([torch.float32, torch.bfloat16], ("torch.bfloat16",)))
def test_image_classification(tmp_path, dtype):
    model = vision().to(dtype)
    pipe = pipeline("image-classification", model=model, image_processor=IMAGES)
    picture().save(tmp_path / "one.png")
    e = relprop.explain(pipe, [picture(), picture(1)], 1)
    f = relprop.explain(
        model, IMAGES([picture(), picture(1)], return_tensors="pt").pixel_values.to(dtype), 1
    )
    assert closeness(e.scores, f.scores) <= 1e-6 and e.heatmap().shape == (2, 16, 16)
    assert e.original_heatmap(1).shape == (20, 30)
    assert same(
        relprop.explain(pipe, str(tmp_path / "one.png"), 1), relprop.explain(pipe, picture(), 1)
    )


def test_zero_shot_image_classification_has_two_inputs():
    pipe = pipeline(
        "zero-shot-image-classification",
        model=clip(),
        tokenizer=tokenizer(),
        image_processor=CROPPED,
    )
    e = relprop.explain(
        pipe,
        {"image": picture(), "candidate_labels": ["sport", "really art"]},
        lambda output: output.logits_per_image[0, 0],
    )
    assert e["pixel_values"].scores.shape == (2, 5) and e["input_ids"].scores.shape[0] == 2
    assert closeness(e["input_ids"].output, pipe_logits(pipe, ["sport", "really art"])) <= 1e-4


def pipe_logits(pipe, labels):
    """The similarity of the picture with each label, as the pipeline's model gives it."""
    texts = pipe.tokenizer(
        [f"This is a photo of {label}." for label in labels], return_tensors="pt", padding=True
    )
    with torch.no_grad():
        pixels = CROPPED(picture(), return_tensors="pt").pixel_values
        return pipe.model(
            input_ids=texts.input_ids, attention_mask=texts.attention_mask, pixel_values=pixels
        ).logits_per_image[0]


def test_a_pipeline_refuses_as_it_would():
    pipe = pipeline("text-classification", model=classifier(), tokenizer=tokenizer())
    with pytest.raises(
        InputError, match=r"pipeline refuses these inputs: ValueError: text input must be of type"
    ) as caught:
        relprop.explain(pipe, 3)
    assert "call the pipeline on them and mend that first" in str(caught.value)
    with pytest.raises(InputError, match=r"the model itself fails on these inputs"):
        relprop.explain(pipe, "the " * 40)
    with pytest.raises(OptionError, match="a pipeline reads its inputs itself"):
        relprop.explain(pipe, TEXTS, processor=tokenizer())
    bare = pipeline(
        "text-generation", model=llama(), tokenizer=tokenizer(special=False, pad_token=None)
    )
    with pytest.raises(
        InputError, match=r"the samples have 1, 3 tokens, and the tokenizer does not pad"
    ):
        relprop.explain(bare, ["the film was", "bad"])


# folders


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with models as their libraries save them."""
    folder = tmp_path_factory.mktemp("models")
    for name, model, reader in (
        ("bert", classifier(), tokenizer()),
        ("vit", vision(), IMAGES),
        ("clip", clip(), transformers.CLIPProcessor(CROPPED, tokenizer())),
    ):
        model.save_pretrained(folder / name)
        reader.save_pretrained(folder / name)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    timm.models.save_for_hf(
        randomised(timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)),
        str(folder / "timm"),
        model_args=sizes,
    )
    picture().save(folder / "one.png")
    return folder


def test_a_folder_of_texts(saved):
    e = relprop.explain(str(saved / "bert"), TEXTS, "entailment")
    f = relprop.explain(classifier(), tokenizer()(TEXTS, return_tensors="pt", padding=True), 2)
    assert same(e, f) and e.tokens == f.tokens and e.content.equal(f.content)
    assert same(
        relprop.explain(saved / "bert", TEXTS[0], 2),
        relprop.explain(classifier(), tokenizer()(TEXTS[0], return_tensors="pt"), 2),
    )


@pytest.mark.parametrize("name", marked(["vit", "timm"], ("timm",)))
def test_a_folder_of_pictures(saved, name):
    opened = [
        relprop.explain(saved / name, given, 1)
        for given in (str(saved / "one.png"), picture(), [picture(), saved / "one.png"])
    ]
    assert all(closeness(e.scores, opened[0].scores.expand_as(e.scores)) <= 1e-6 for e in opened)
    assert opened[2].heatmap().shape == (2, 16, 16)
    if name == "vit":
        assert same(opened[0], relprop.explain(vision(), IMAGES(picture(), return_tensors="pt"), 1))


def test_a_folder_of_pairs(saved):
    e = relprop.explain(
        saved / "clip",
        {"text": ["really art"], "images": picture()},
        lambda output: output.logits_per_image[0, 0],
    )
    assert e["pixel_values"].scores.any() and e["input_ids"].tokens == [
        ["[CLS]", "really", "art", "[SEP]"]
    ]


def test_open_model_loads_once_what_is_used_often(saved):
    from relprop.opening.opening import open_model

    model, inputs = open_model(saved / "bert", TEXTS)
    assert isinstance(model, transformers.BertForSequenceClassification) and not model.training
    assert same(relprop.explain(model, inputs, 1), relprop.explain(saved / "bert", TEXTS, 1))
    assert relprop.check(model, inputs).ok
    module, tensors = open_model(model, inputs)
    assert module is model and tensors is inputs


# code that comes with a model


CODE = """
import pathlib
import torch
from transformers import BertConfig, BertForSequenceClassification
pathlib.Path({mark!r}).write_text("ran")
class OwnConfig(BertConfig):
    model_type = "own_bert"
class OwnModel(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A folder whose config names a class that is defined in a file beside it."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    folder, mark = tmp_path / "own", tmp_path / "mark"
    classifier().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own_bert", "architectures": ["OwnModel"]}
    config["auto_map"] = {
        "AutoConfig": "own.OwnConfig",
        "AutoModelForSequenceClassification": "own.OwnModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    return folder, mark


def test_code_of_a_models_own_is_not_run_unasked(foreign):
    folder, mark = foreign
    with pytest.raises(
        InputError, match=r"comes with code of its own, which is not run unasked"
    ) as caught:
        relprop.explain(folder, TEXTS, 1)
    assert "trust_remote_code=True runs it" in str(caught.value) and not mark.exists()


def test_code_of_a_models_own_runs_when_asked(foreign):
    folder, mark = foreign
    e = relprop.explain(folder, TEXTS, 1, trust_remote_code=True)
    assert mark.exists() and same(
        e, relprop.explain(classifier(), tokenizer()(TEXTS, return_tensors="pt", padding=True), 1)
    )


# what cannot be opened


def edited(folder, tmp_path, **changes):
    """A copy of a saved model with another config."""
    shutil.copytree(folder, tmp_path / "edited")
    config = json.loads((tmp_path / "edited" / "config.json").read_text())
    (tmp_path / "edited" / "config.json").write_text(json.dumps(config | changes))
    return tmp_path / "edited"


def alone(model, folder):
    """A model saved without what reads its inputs."""
    model.save_pretrained(folder)
    return folder


REFUSED = {
    "an empty folder": (
        lambda saved, tmp: (tmp, "a"),
        r"holds no config.json then give a folder that save_pretrained wrote",
    ),
    "an adapter alone": (
        lambda saved, tmp: ((tmp / "adapter_config.json").write_text("{}") and tmp, "a"),
        r"holds an adapter without its model then load it with peft",
    ),
    "no architecture": (
        lambda saved, tmp: (edited(saved / "bert", tmp, architectures=None), "a"),
        r"names no architecture then load the model with the class it is of",
    ),
    "an unknown architecture": (
        lambda saved, tmp: (edited(saved / "bert", tmp, architectures=["BertForNothing"]), "a"),
        r"names the architecture 'BertForNothing', which transformers [\d.]+ does not have",
    ),
    "an unknown type": (
        lambda saved, tmp: (edited(saved / "bert", tmp, model_type="bertolt"), "a"),
        r"could not be loaded: ValueError: .*bertolt",
    ),
    "no vocabulary": (
        lambda saved, tmp: (alone(classifier(), tmp), "a"),
        r"comes without the vocabulary of its tokenizer then tokenizer.save_pretrained",
    ),
    "no tokenizer": (
        lambda saved, tmp: (alone(llama(), tmp), "a"),
        r"has no tokenizer or processor that can be loaded: ValueError.*then give one: processor=",
    ),
    "a text for pictures": (
        lambda saved, tmp: (saved / "vit", "a text"),
        r"there is no such file at a text",
    ),
    "a picture for texts": (lambda saved, tmp: (saved / "bert", picture()), r"does not read Image"),
    "an id without a network": (
        lambda saved, tmp: ("bert-base-uncased", "a"),
        (
            r"'bert-base-uncased' could not be loaded: .*then give a folder that "
            r"save_pretrained wrote, an id that can be reached"
        ),
    ),
    "a timm id without a network": (
        lambda saved, tmp: ("timm/vit_tiny_patch16_224", picture()),
        r"'timm/vit_tiny_patch16_224' could not be loaded",
    ),
    "a timm name without a network": (
        lambda saved, tmp: ("timm:vit_tiny_patch16_224", picture()),
        r"'timm:vit_tiny_patch16_224' could not be loaded",
    ),
    "no timm name": (
        lambda saved, tmp: ("timm:vitty", picture()),
        r"has no model 'vitty' then timm:\w*vit_tiny",
    ),
    "neither a folder nor an id": (
        lambda saved, tmp: ("no such/folder/anywhere", "a"),
        r"there is no file or folder 'no such/folder/anywhere'",
    ),
    "no folder there": (
        lambda saved, tmp: (saved / "brt", "a"),
        r"no file or folder.*bert",
    ),
    "no folder here": (lambda saved, tmp: ("./x", "a"), r"there is no file or folder './x'"),
    "no file of weights": (
        lambda saved, tmp: ("x.pth", "a"),
        r"no file or folder 'x.pth'",
    ),
    "a misspelt id of timm": (
        lambda saved, tmp: ("timm/vit_tinny_patch16_224", picture()),
        r"has no model 'vit_tinny_patch16_224' then timm:vit_tiny_patch16_224",
    ),
    "a misspelt name of timm": (
        lambda saved, tmp: ("vit_tinny", picture()),
        r"no such id was found then timm:vit_tiny_patch16_224",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_one_sentence(name, saved, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    make, said = REFUSED[name]
    model, inputs = make(saved, tmp_path)
    with pytest.raises(InputError) as caught:
        relprop.explain(model, inputs, 1)
    assert re.search(said, " ".join(str(caught.value).split())), str(caught.value)


@pytest.mark.parametrize("name", ["timm/vit_tinny_patch16_224", "vit_tinny", "/no/such", "x.pth"])
def test_what_is_no_model_is_told_before_the_hub_is_asked(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    monkeypatch.setattr(transformers.PreTrainedConfig, "get_config_dict", None)
    with pytest.raises(InputError, match=r"has no model|no such id|no file or folder"):
        relprop.open_model(name, picture())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".bin"])
def test_a_file_of_weights_is_told_how_it_is_opened(suffix, tmp_path):
    made = timm.create_model("test_vit").eval()
    file = tmp_path / f"weights{suffix}"
    save = safetensors.torch.save_file if suffix == ".safetensors" else torch.save
    save(made.state_dict(), file)
    with pytest.raises(InputError, match="does not say what model it is of") as caught:
        relprop.open_model(file, picture())
    first, second = re.findall(r"model.*(?=   #)", str(caught.value))
    names = {"timm": timm, "torch": torch, "safetensors": safetensors, "NAME": "test_vit"}
    exec(first, names)
    names["model"].head.weight.data.zero_()
    exec(second, names)
    assert torch.equal(names["model"].head.weight, made.head.weight)


def test_trust_is_for_what_is_loaded():
    with pytest.raises(OptionError, match="trust_remote_code is for a model given by id or folder"):
        relprop.explain(
            classifier(),
            tokenizer()(TEXTS, return_tensors="pt", padding=True),
            trust_remote_code=True,
        )
