"""relprop beside other libraries, on the same weights and inputs: time, FLOPs, peak memory, and how
far the numbers of one method agree.

    python benchmarks/peers.py --install ENVS     # an environment for each library (pip)
    python benchmarks/peers.py --run ENVS         # measure, into docs/peers.json and docs/peers.md

Each environment has a library and what it insists on; PyTorch and everything else come from the
one that this runs in. Models have seeded random weights, the same file for all. Every figure is
taken in a process of its own, after a first call: CPU time of a call, the median of three, ÷ that
of the model's forward pass in the same process; FLOPs of a call ÷ those of the forward pass; the
growth of the resident set in a call, with an allocator that returns what is freed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from counting import flops
from peers_page import write_page
from torch import Tensor, nn

#: What is installed for each library, and what it insists on.
INSTALLED = {
    "lxt": ["lxt==2.1", "zennit==0.5.1", "tabulate", "transformers==4.52.4", "tokenizers==0.21.4"]
    + ["huggingface_hub==0.36.0"],
    "zennit": ["--ignore-requires-python", "zennit==1.0.0"],
    "captum": ["captum==0.9.0"],
    "autolrp": ["autolrp==0.2.0"],
}
RESULT = Path(__file__).parents[1] / "docs" / "peers.json"
REPEATS = 3
LIMIT = 600


def vit() -> nn.Module:
    """torchvision's, which lxt has patches for."""
    from torchvision.models import vit_b_16

    return vit_b_16()


def bert() -> nn.Module:
    import transformers

    return transformers.BertForSequenceClassification(transformers.BertConfig())


def llama() -> nn.Module:
    import transformers

    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4}
    config = transformers.LlamaConfig(vocab_size=32000, num_attention_heads=8, **sizes)
    return transformers.LlamaForCausalLM(config)


def resnet() -> nn.Module:
    from torchvision.models import resnet50

    return resnet50()


MAKE = {"ViT-B/16": vit, "BERT-base": bert, "Llama-shaped": llama, "ResNet-50": resnet}
PICTURES = ("ViT-B/16", "ResNet-50")
#: The methods of each library on each model, by the names that relprop has them under.
CASES: dict[str, dict[str, list[str]]] = {
    "relprop": {
        "ViT-B/16": [
            "transformer_attribution",
            "transformer_attribution, verify=False",
            "attnlrp",
            "attnlrp, verify=False",
            "cp_lrp",
        ],
        "BERT-base": ["transformer_attribution", "attnlrp", "attnlrp, verify=False"],
        "Llama-shaped": ["transformer_attribution", "attnlrp", "attnlrp, verify=False"],
        "ResNet-50": ["lrp", "epsilon_lrp", "attnlrp", "gradient_x_input"],
    },
    "lxt": {"ViT-B/16": ["cp_lrp"], "BERT-base": ["attnlrp"], "Llama-shaped": ["attnlrp"]},
    "autolrp": {
        "ViT-B/16": ["attnlrp", "cp_lrp"],
        "BERT-base": ["attnlrp"],
        "Llama-shaped": ["attnlrp"],
        "ResNet-50": ["attnlrp"],
    },
    "zennit": {"ResNet-50": ["epsilon_plus", "epsilon"]},
    "captum": {"ResNet-50": ["gradient_x_input", "lrp_epsilon"]},
}


class Subject:
    """A model with the weights of ``folder``, one input, and the number that is explained."""

    def __init__(self, name: str, folder: Path, patch: Callable[[], None] = lambda: None) -> None:
        self.name = name
        patch()
        self.model = MAKE[name]().eval().requires_grad_(False)
        file = folder / f"{name.replace('/', '-')}.pt"
        if not file.exists():
            torch.manual_seed(0)
            model = MAKE[name]()
            for parameter in model.parameters():  # a head of zeros says nothing of anything
                if parameter.dim() > 1 and not parameter.any():
                    nn.init.normal_(parameter, std=0.02)
            torch.save((model.state_dict(), self._drawn()), file)
        weights, self.input = torch.load(file)
        self.model.load_state_dict(weights)

    def _drawn(self) -> Tensor:
        if self.name in PICTURES:
            return torch.randn(1, 3, 224, 224)
        bert = self.name == "BERT-base"
        return torch.randint(30000, (1, 512) if bert else (1, 2048))

    @property
    def given(self) -> Tensor:
        """What relevance is asked for: pixels, or embeddings of the ids."""
        if self.name in PICTURES:
            return self.input
        return self.model.get_input_embeddings()(self.input).detach()  # type: ignore[operator]

    def scalar(self, x: Tensor) -> Tensor:
        """The number that is explained: a logit of the last position, or of a class."""
        if self.name in PICTURES:
            return self.model(x)[0, 5]
        if self.name == "BERT-base":
            mask = torch.ones_like(self.input)
            return self.model(inputs_embeds=x, attention_mask=mask).logits[0, 1]
        out = self.model(inputs_embeds=x, use_cache=False, logits_to_keep=1)
        return out.logits[0, -1, 7]

    def scores(self, relevance: Tensor) -> Tensor:
        """Summed over features or colours, one number for each token or pixel."""
        return relevance.sum(1 if self.name in PICTURES else -1).detach().flatten()


Explain = Callable[[], Tensor]


def of_relprop(subject: Subject, method: str) -> Explain:
    import relprop

    name, _, bare = method.partition(", ")
    inputs: Any = subject.input
    target: Any = 5
    if subject.name == "BERT-base":
        inputs, target = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}, 1
    if subject.name == "Llama-shaped":
        inputs, target = {"input_ids": inputs}, (2047, 7)

    def explain() -> Tensor:
        e = relprop.explain(subject.model, inputs, target, method=name, verify=not bare)
        return e.scores.flatten()

    return explain


def by_gradient(subject: Subject) -> Explain:
    """x ⊙ ∂y/∂x, of a model whose derivatives a library has replaced."""

    def explain() -> Tensor:
        x = subject.given.detach().requires_grad_()
        (slope,) = torch.autograd.grad(subject.scalar(x), x)
        return subject.scores(x * slope)

    return explain


def patch_lxt(name: str, method: str) -> None:
    import importlib

    from lxt.efficient import monkey_patch

    modules = {
        "ViT-B/16": ("torchvision.models.vision_transformer", "vit_torch"),
        "BERT-base": ("transformers.models.bert.modeling_bert", "bert"),
        "Llama-shaped": ("transformers.models.llama.modeling_llama", "llama"),
    }
    module, patches = modules[name]
    maps = importlib.import_module(f"lxt.efficient.models.{patches}")
    monkey_patch(
        importlib.import_module(module),
        maps.attnLRP if method == "attnlrp" else maps.cp_LRP,
    )


def of_zennit(subject: Subject, method: str) -> Explain:
    from zennit.composites import EpsilonPlus, LayerMapComposite
    from zennit.rules import Epsilon, Norm
    from zennit.torchvision import ResNetCanonizer
    from zennit.types import AvgPool, Linear
    from zennit.types import Convolution as Conv

    if method == "gradient_x_input":
        return by_gradient(subject)
    canonizers = [ResNetCanonizer()]
    if method == "epsilon":
        layers = [(Conv, Epsilon()), (Linear, Epsilon()), (AvgPool, Norm())]
        composite: Any = LayerMapComposite(layer_map=layers, canonizers=canonizers)
    else:
        composite = EpsilonPlus(canonizers=canonizers)

    def explain() -> Tensor:
        x = subject.given.detach().requires_grad_()
        with composite.context(subject.model) as model:
            y = model(x)[0, 5]
            (found,) = torch.autograd.grad(y, x, y.detach())
        return subject.scores(found)

    return explain


def of_captum(subject: Subject, method: str) -> Explain:
    from captum.attr import LRP, InputXGradient

    def forward(x: Tensor) -> Tensor:
        return subject.scalar(x).reshape(1)

    if method == "lrp_epsilon":
        return lambda: subject.scores(LRP(subject.model).attribute(subject.given, target=5))
    attribute = InputXGradient(forward).attribute
    return lambda: subject.scores(attribute(subject.given.detach().requires_grad_()))


def of_autolrp(subject: Subject, method: str) -> Explain:
    import autolrp

    rules = {"attnlrp": autolrp.ATTNLRP, "cp_lrp": autolrp.CPLRP}[method]
    config = autolrp.LRPConfig(rule={**autolrp.BASE, **rules})

    def explain() -> Tensor:
        x = autolrp.tensor(subject.given)
        subject.scalar(x).lrp(config=config)
        return subject.scores(x.relevance)

    return explain


def explainer(peer: str, name: str, method: str, folder: Path) -> tuple[Subject, Explain]:
    if peer == "lxt":
        subject = Subject(name, folder, lambda: patch_lxt(name, method))
        return subject, by_gradient(subject)
    subject = Subject(name, folder)
    if peer == "plain":
        return subject, by_gradient(subject)
    of = {"relprop": of_relprop, "zennit": of_zennit, "captum": of_captum, "autolrp": of_autolrp}
    return subject, of[peer](subject, method)


def seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def growth(call: Callable[[], object]) -> float:
    """By how many MiB the resident set grows, at the most."""
    import psutil

    process, done = psutil.Process(), threading.Event()
    base = process.memory_info().rss
    peak = [base]

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return (peak[0] - base) / 2**20


def measure(peer: str, name: str, method: str, folder: Path) -> dict[str, Any]:
    """The figures of one method, in this process."""
    torch.set_num_threads(1)
    subject, explain = explainer(peer, name, method, folder)

    def forward() -> None:
        with torch.no_grad():
            subject.scalar(subject.given)

    forward()
    torch.save(explain(), folder / f"{peer} {name.replace('/', '-')} {method}.pt")
    own, record = seconds(forward), {"MiB": round(growth(explain), 1)}
    record |= {"forward_s": own, "time": seconds(explain) / own}
    # with a gradient to come PyTorch leaves its fused layers out, which the counter does not see
    counted = flops(lambda: subject.scalar(subject.given.clone().requires_grad_()))
    return record | {"flops": flops(explain) / counted}


def install(folder: Path) -> None:
    """An environment for each library."""
    shared = sysconfig.get_path("purelib")
    for peer, packages in INSTALLED.items():
        venv.create(folder / peer, with_pip=False, clear=True)
        python = folder / peer / "bin" / "python"
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
        subprocess.run([*pip, "--ignore-installed", *packages], check=True)
        (Path(own) / "zz_shared.pth").write_text(shared + "\n")


def run(folder: Path) -> None:
    """Every figure that is not there yet, each in a process of its own."""
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"figures": []}
    known = {(f["peer"], f["model"], f["method"]) for f in result["figures"]}
    plain = {name: ["forward + input gradient"] for name in MAKE}
    for peer, models in {"plain": plain, **CASES}.items():
        for name, methods in models.items():
            for method in methods:
                if (peer, name, method) not in known:
                    record = {
                        "peer": peer,
                        "model": name,
                        "method": method,
                        "load": os.getloadavg()[0],
                    }
                    record |= _apart(folder, peer, name, method)
                    result["figures"].append(record)
                    print(record, flush=True)
                    _write(result, folder)


def _write(result: dict[str, Any], folder: Path) -> None:
    result["agreement"] = agreements(result["figures"], folder)
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    result["environment"] = versions | {"cores": os.cpu_count(), "threads": 1}
    result["installed"] = INSTALLED
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    write_page(RESULT.parent)


def _apart(folder: Path, peer: str, name: str, method: str) -> dict[str, Any]:
    own = folder / peer / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    command = [python, __file__, "--measure", peer, name, method, str(folder)]
    returning = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    env = {**os.environ, **returning, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"missing": f"not within {LIMIT} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["failed"])[-1]
        return {"missing": last[:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def agreements(figures: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Of every method that another library has too: how far its scores are from relprop's."""
    found = []
    for f in figures:
        names = [
            folder / f"{p} {f['model'].replace('/', '-')} {f['method']}.pt"
            for p in ("relprop", f["peer"])
        ]
        if f["peer"] in ("relprop", "plain") or not all(n.exists() for n in names):
            continue
        mine, theirs = (torch.load(n).double().flatten() for n in names)
        if len(mine) == len(theirs):
            off = float((mine - theirs).abs().max() / mine.abs().max())
            r = float(torch.corrcoef(torch.stack([mine, theirs]))[0, 1])
            found.append({k: f[k] for k in ("peer", "model", "method")} | {"off": off, "r": r})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        peer, name, method, folder = given.measure
        print(json.dumps(measure(peer, name, method, Path(folder))))
    if given.install:
        install(given.install)
    if given.run:
        run(given.run)


if __name__ == "__main__":
    main()
