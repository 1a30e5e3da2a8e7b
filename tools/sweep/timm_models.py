"""timm's models: one of every module that registers any, and the variants named in the project's
promise, each as small as it builds.

The constructor's own arguments are read off a build on the meta device and made smaller by what
their names say; of a ladder of such settings and input sizes the first that builds and runs is
kept.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from relprop.errors import OptionError
from tools.sweep.subject import Built, CannotBuild, Subject
from tools.sweep.weights import enliven

SIZE_WORDS = {
    "test": 0,
    "atto": 1,
    "femto": 2,
    "pico": 3,
    "xxtiny": 3,
    "xxs": 3,
    "xx": 3,
    "nano": 4,
    "xtiny": 4,
    "xs": 5,
    "tiny": 6,
    "ti": 6,
    "mini": 6,
    "small": 7,
    "s": 7,
    "little": 7,
    "medium": 8,
    "base": 10,
    "b": 10,
    "large": 14,
    "l": 14,
    "xlarge": 17,
    "xl": 17,
    "huge": 18,
    "xxlarge": 20,
    "giant": 20,
    "gigantic": 22,
    "enormous": 24,
}
REPRESENTATIVES = {  # modules whose smallest model is not the kind the module is about
    "byoanet": "botnet26t_256",
    "metaformer": "caformer_s18",
    "vision_transformer": "vit_tiny_patch16_224",
    "eva": "eva02_tiny_patch14_224",
    "mlp_mixer": "mixer_s32_224",
    "mobilenetv5": "mobilenetv5_base",
    "naflexvit": "naflexvit_base_patch16_gap",
    "swin_transformer": "swin_tiny_patch4_window7_224",
}
SMALLER: dict[
    str, dict[str, Any]
] = {  # modules whose entry points take sizes that their classes' constructors do not name
    "mobilenetv5": {"channel_multiplier": 0.25},
    "naflexvit": {"embed_dim": 48, "depth": 2, "num_heads": 4},
}
PROMISED: tuple[tuple[str, str, dict[str, Any]], ...] = (  # model, what is special, arguments
    ("vit_tiny_patch16_224", "class token", {}),
    ("vit_tiny_patch16_224", "mean pool", {"global_pool": "avg"}),
    ("vit_tiny_patch16_224", "map pool", {"global_pool": "map"}),
    ("vit_tiny_patch16_224", "registers", {"reg_tokens": 4}),
    ("deit_tiny_distilled_patch16_224", "distilled", {}),
    ("deit3_small_patch16_224", "", {}),
    ("beit_base_patch16_224", "", {}),
    ("eva02_tiny_patch14_224", "", {}),
    ("cait_xxs24_224", "", {}),
    ("swin_tiny_patch4_window7_224", "", {}),
    ("swinv2_tiny_window8_256", "", {}),
    ("pvt_v2_b0", "", {}),
    ("test_maxvit", "MaxViT", {}),
    ("maxvit_rmlp_pico_rw_256", "", {}),
    ("test_coatnet", "CoAtNet", {}),
    ("coatnet_pico_rw_224", "", {}),
    ("mvitv2_tiny", "", {}),
    ("mvitv2_small_cls", "class token", {}),
    ("levit_128s", "", {}),
    ("volo_d1_224", "", {}),
    ("crossvit_tiny_240", "", {}),
    ("twins_svt_small", "", {}),
    ("twins_pcpvt_small", "", {}),
    ("davit_tiny", "", {}),
    ("hiera_tiny_224", "", {}),
    ("xcit_nano_12_p8_224", "", {}),
)
WIDTHS = re.compile(
    r"(^|_)(embed_dims?|dims?|widths?|width_list|channels|hidden_sizes|base_dim|inner_dim|partial_dim|intermediate_size|stem_hidden_dim)$"
)
DEPTHS = re.compile(
    r"(^|_)(depths?|layers|depth_list|serial_depths|parallel_depth|post_depths|k_sec|block_config)$"
)
WINDOWS = re.compile(r"(^|_)(window_sizes?|wss)$")
LADDER = (
    (8, True),
    (4, True),
    (2, True),
    (1, True),
    (4, False),
    (1, False),
)  # width divided by, depth cut
SIZES = (64, 96, 112, 128, 160, 192, 224, 240, 256, 288, 384)


def timm_subjects() -> tuple[Subject, ...]:
    """One subject per module of ``timm.models`` that registers models, then the promised variants
    that are not among them."""
    modules = models_by_module()
    where = {name: module for module, names in modules.items() for name in names}
    subjects: dict[tuple[Any, ...], Subject] = {}
    for module, names in sorted(modules.items()):
        entry = REPRESENTATIVES.get(module) or min(names, key=size_hint)
        subjects[module, entry, ()] = Subject("timm", module, entry)
    for entry, variant, settings in PROMISED:
        key = (where[entry], entry, tuple(sorted(settings.items())))
        subjects[key] = Subject(
            "timm",
            where[entry],
            entry,
            settings=key[2],
            variant=variant if settings else "",
            named=True,
        )
    return tuple(subjects.values())


def models_by_module() -> dict[str, list[str]]:
    """timm's registered models by the module that defines them."""
    timm = _timm()
    modules = defaultdict(list)
    for name in timm.list_models():
        modules[timm.models.model_entrypoint(name).__module__.rpartition(".")[2]].append(name)
    return dict(modules)


def size_hint(name: str) -> tuple[Any, ...]:
    """An order of model names that puts small models first."""
    words = [SIZE_WORDS[word] for word in name.split("_") if word in SIZE_WORDS]
    return (min(words, default=9), [int(n) for n in re.findall(r"\d+", name)], len(name), name)


def build_timm(subject: Subject, batch: int = 3) -> Built:
    """The subject's model with seeded random weights, at the first rung of the ladder that builds
    and runs, with inputs for it."""
    timm = _timm()
    fixed = {**SMALLER.get(subject.family, {}), **dict(subject.settings)}
    given = {**_constructor_arguments(timm, subject), **fixed}
    config = timm.get_pretrained_cfg(subject.entry)
    native = config.input_size if config is not None else (3, 224, 224)
    refusals = []
    for settings, size in _attempts(given, native):
        try:
            torch.manual_seed(0)
            model = timm.create_model(
                subject.entry, pretrained=False, **{**settings, **fixed}
            ).eval()
            images = torch.randn(2 * batch, native[0], size, size)
            with torch.no_grad():
                enliven(model)
                model(images[:1])
        except Exception as refused:  # constructors refuse in many ways; the next rung is tried
            refusals.append(
                f"{type(refused).__name__}: {str(refused).splitlines()[0] if str(refused) else ''}"
            )
            continue
        return Built(
            model,
            images[:batch],
            images[batch:],
            shrunk=", ".join(f"{k}={v}" for k, v in {**settings, **fixed}.items()),
        )
    raise CannotBuild(refusals[-1] if refusals else "no size to try")


def _constructor_arguments(timm: Any, subject: Subject) -> dict[str, Any]:
    """What the entry point gives its class, and the class's defaults for the rest."""

    def make() -> nn.Module:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(
                subject.entry, pretrained=False, **dict(subject.settings)
            )
        return model

    try:
        kind = type(make())
        seen: dict[str, Any] = {}
        original: Callable[..., None] = kind.__init__

        def recording(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            seen.update({k: v for k, v in kwargs.items() if k not in seen})
            original(self, *args, **kwargs)

        kind.__init__ = recording  # type: ignore[method-assign]
        try:
            make()
        finally:
            kind.__init__ = original  # type: ignore[method-assign]
    except Exception:  # a model that does not build on the meta device is built as it is
        return {}
    defaults = {
        k: p.default
        for k, p in inspect.signature(original).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    return {**defaults, **seen}


def _attempts(
    given: dict[str, Any], native: tuple[int, ...]
) -> Iterator[tuple[dict[str, Any], int]]:
    sizes = _sizes(given, native[-1])
    for divisor, shallow in LADDER:
        for size in sizes:
            settings = shrunk_arguments(given, divisor, shallow)
            if "img_size" in given:
                settings["img_size"] = size
            yield settings, size
    for size in (*sizes, native[-1]):
        yield ({"img_size": size} if "img_size" in given else {}), size


def shrunk_arguments(given: dict[str, Any], divisor: int, shallow: bool) -> dict[str, Any]:
    """The constructor's arguments, smaller: at most 2 blocks per stage, widths divided by
    ``divisor``, windows of 4, 10 classes."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if WIDTHS.search(name) and _numeric(value):
            settings[name] = _each(value, lambda v: max(v // divisor, 4))
        elif DEPTHS.search(name) and shallow and _numeric(value):
            settings[name] = _each(value, lambda v: min(v, 2))
        elif WINDOWS.search(name) and _numeric(value):
            settings[name] = _each(value, lambda v: min(v, 4))
    settings = {k: v for k, v in settings.items() if v != given[k]}
    if "num_classes" in given:
        settings["num_classes"] = 10
    return settings


def _sizes(given: dict[str, Any], native: int) -> list[int]:
    """Input sizes to try, small to large: four patches a side where one patch size says it all."""
    patch, depth = given.get("patch_size"), given.get("depth")
    first = [4 * patch] if isinstance(patch, int) and patch >= 8 and isinstance(depth, int) else []
    return [size for size in (*first, *SIZES) if size <= max(native, 64)]


def _numeric(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_numeric, value))
    return isinstance(value, int) and not isinstance(value, bool)


def _each(value: Any, change: Callable[[int], int]) -> Any:
    return (
        type(value)(_each(v, change) for v in value)
        if isinstance(value, (list, tuple))
        else change(value)
    )


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise OptionError("sweeping timm needs timm: pip install timm") from None
    return timm
