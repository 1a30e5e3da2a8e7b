"""The table of `test_ordinary_inputs.py`: one line for each ordinary thing: what is given, and the
plain thing that it is; what is said of it; or with what words it is refused."""

import collections
import dataclasses
import io
import types

import numpy as np
import pandas as pd
import torch
import transformers
from PIL import Image, ImageCms

import relprop
from relprop.errors import CaptureError, InputError, TargetError
from tests.e2e.ordinary_roads import PIXELS, SERIES, TOKENIZER, file, written


@dataclasses.dataclass(frozen=True)
class Row:
    """``plain``: what gives the same by the plainest road; ``says``: words of the warning, or, with
    an ``error``, of the refusal, after whose advice it is the same (``None``: another thing)."""

    given: object
    plain: object = None
    says: str = ""
    error: type | None = None
    close: float = 4e-6


def no(given, says, plain=None, error=InputError):
    return Row(given, plain, says, error)


ROWS: dict[str, tuple] = {}


def table(*ways, **rows):
    for way in ways:
        for name, row in rows.items():
            made = row if isinstance(row, Row) else Row(*row)
            ROWS[f"{way}: {name.replace('_', ' ')}"] = (way, made)


COLOURS = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
RGB = Image.fromarray(COLOURS)
GREY = RGB.convert("L")
BLACK = GREY.convert("1")
PALETTE = RGB.quantize(64)
BY_PALETTE, FLAT = PALETTE.convert("RGB"), GREY.convert("RGB")
LEVELS = np.array(GREY)
DEEP = LEVELS.astype(np.uint16) * 257
CHW = COLOURS.transpose(2, 0, 1)
TENSOR = torch.from_numpy(CHW.copy())
ROUNDED = Image.fromarray((COLOURS * (256 / 257)).round().astype(np.uint8))
MOVING = {"save_all": True, "append_images": [PALETTE.rotate(90)]}
TURNED = Image.Exif()
TURNED[0x112] = 6


def of_a_file(*picture, **options):
    return Image.open(io.BytesIO(file(*picture, **options)[1]))


def seen_through(picture, level, mode="RGBA"):
    picture = picture.convert("RGBA")
    picture.putalpha(level)
    return picture.convert(mode)


def lab():
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    found = ImageCms.profileToProfile(RGB, *profiles, outputMode="LAB")
    return found, ImageCms.profileToProfile(found, *profiles[::-1], outputMode="RGB")


PIL_16B = Image.frombytes("I;16B", GREY.size, DEEP.astype(">u2").tobytes())
WHITE = "which of them is white"
PICTURES = "processor", "timm", "pipeline"
table(
    *PICTURES,
    L=(GREY, FLAT),
    one=(BLACK, BLACK.convert("RGB")),
    P=(PALETTE, BY_PALETTE),
    PA=(PALETTE.convert("PA"), BY_PALETTE),
    LA=(GREY.convert("LA"), FLAT),
    La=(GREY.convert("LA").convert("La"), FLAT),
    RGBA=(seen_through(RGB, 255), RGB),
    RGBa=(seen_through(RGB, 255, "RGBa"), RGB),
    seen_through=(seen_through(RGB, 99), RGB, "transparency is left out"),
    CMYK=(RGB.convert("CMYK"), RGB.convert("CMYK").convert("RGB"), "colours are CMYK"),
    LAB=(*lab(), "colours are LAB"),
    I=(Image.fromarray(LEVELS.astype(np.int32)), FLAT),
    I_of_16_bits=(Image.fromarray(DEEP.astype(np.int32)), FLAT),
    I16=(Image.fromarray(DEEP), FLAT),
    I16B=(PIL_16B, FLAT),
    F=no(Image.fromarray(LEVELS.astype(np.float32)), WHITE, FLAT),
    GIF=(of_a_file(PALETTE, "GIF"), BY_PALETTE),
    moving_GIF=(of_a_file(PALETTE, "GIF", **MOVING), BY_PALETTE, "frame 1 of 2"),
    TIFF_stack=(of_a_file(RGB, "TIFF", **MOVING), RGB, "frame 1 of 2"),
    cut_out=(Image.fromarray(np.pad(COLOURS, ((3,), (3,), (0,)))).crop((3, 3, 53, 43)), RGB),
    one_pixel=(RGB.crop((0, 0, 1, 1)), Image.fromarray(COLOURS[:1, :1])),
    modes_mixed=([GREY, PALETTE, RGB], [FLAT, BY_PALETTE, RGB]),
    path=(written(*file(GREY)), FLAT),
    path_as_text=(str(written(*file(GREY))), FLAT),
    bytes=(file(GREY)[1], FLAT),
    arrays=([COLOURS, LEVELS], [RGB, FLAT]),
    HWC=(COLOURS, RGB),
    CHW=(CHW, RGB),
    floats=no(COLOURS[:32, :32] / 255, WHITE, RGB.crop((0, 0, 32, 32))),
    floats_to_255=no(COLOURS.astype(np.float32), "from 0 to 255: which of them is white", RGB),
    NaN=no(np.full((8, 8, 3), np.nan), WHITE),
    no_file=no("https://example.org/cat.png", ""),
)
table("processor", "timm", EXIF=(of_a_file(RGB, "PNG", exif=TURNED), RGB))
UPRIGHT = RGB.transpose(Image.Transpose.ROTATE_270)
table("pipeline", EXIF=(of_a_file(RGB, "PNG", exif=TURNED), UPRIGHT))
table(
    "processor",
    "timm",
    tuple=((RGB, GREY), [RGB, FLAT]),
    HW=(LEVELS, FLAT),
    HW4=(np.array(seen_through(RGB, 255)), RGB),
    CHW_4_wide=no(CHW[..., :4].copy(), "are the channels first, or last?"),
    int64=(COLOURS.astype(np.int64), RGB),
    uint16=(COLOURS.astype(np.uint16) * 257, RGB),
    uint16_of_other_order=(COLOURS.astype(">u2") * 257, RGB),
    uint16_rounded=(COLOURS.astype(np.uint16) * 256, ROUNDED, "rounded to 8"),
    int8=no((COLOURS.astype(int) - 128).astype(np.int8), "levels 0 to 255 are known"),
    truth_values=(LEVELS > 99, GREY.point(lambda level: 255 * (level > 99)).convert("RGB")),
    masked=(np.ma.array(COLOURS), RGB),
    a_batch=(np.stack([COLOURS, COLOURS[::-1]]), [RGB, RGB.transpose(1)]),
    nested_lists=no(COLOURS.tolist(), ""),
    tensor=no(TENSOR, ""),
)
table(
    "processor",
    images=({"images": GREY}, FLAT),
    images_array=({"images": COLOURS}, RGB),
)
T, U = "the film was fine", ["the film was fine", "good long film is dull"]
BESIDE = {"text": [T], "images": [FLAT]}
table(
    "pictures and texts",
    one=({"text": T, "images": GREY}, BESIDE),
    array=({"text": [T], "images": [LEVELS]}, BESIDE),
    of_16_bits=({"text": T, "images": Image.fromarray(DEEP)}, BESIDE),
    tensors=({"text": [T], "images": [TENSOR]}, {"text": [T], "images": [RGB]}),
    no_picture=no({"text": T, "images": []}, "does not read"),
)
JPEG, INK = file(RGB, "JPEG"), file(RGB.convert("CMYK"), "JPEG")


def in_rgb(stored):
    return file(Image.open(io.BytesIO(stored[1])).convert("RGB"))


FILES = "path", "path in a pipeline", "folder", "table of files"
table(
    *FILES,
    JPEG=(JPEG, in_rgb(JPEG)),
    CMYK_JPEG=(INK, in_rgb(INK), "colours are CMYK"),
    grey_PNG=(file(GREY), file(FLAT)),
    one_bit_PNG=(file(BLACK), file(BLACK.convert("RGB"))),
    PNG_of_16_bits=(file(Image.fromarray(DEEP)), file(FLAT)),
    PNG_by_a_palette=(file(PALETTE), file(BY_PALETTE)),
    PNG_seen_through=(file(seen_through(RGB, 99)), file(RGB), "transparency is left out"),
    TIFF_of_16_bits=(file(Image.fromarray(DEEP), "TIFF"), file(FLAT)),
    TIFF_stack=(file(RGB, "TIFF", **MOVING), file(RGB), "frame 1 of 2"),
    TIFF_of_floats=no(file(Image.fromarray(LEVELS / np.float32(255)), "TIFF"), WHITE),
    moving_GIF=(file(PALETTE, "GIF", **MOVING), file(BY_PALETTE), "frame 1 of 2"),
    PGM_of_16_bits=(("a.pgm", file(Image.fromarray(DEEP), "PPM")[1]), file(FLAT)),
    an_odd_name=(("Фото 1 [a]#.PNG", file(RGB)[1]), file(RGB)),
    another_ending=(("a.jpg", file(RGB)[1]), file(RGB)),
    text=no(("a.png", b"no picture"), "no picture can be read"),
    half_a_file=no(("a.png", file(RGB)[1][:900]), "truncated"),
)
table(*FILES[::2], EXIF=(file(RGB, "PNG", exif=TURNED), file(RGB)))
table(
    "saved model",
    "command, a picture",
    PNG_of_16_bits=(file(Image.fromarray(DEEP)), file(FLAT)),
    PNG_by_a_palette=(file(PALETTE), file(BY_PALETTE)),
    TIFF_stack=(file(RGB, "TIFF", **MOVING), file(RGB), "frame 1 of 2"),
    text=no(("a.png", b"no picture"), "no picture can be read"),
)
P = {"pixel_values": PIXELS}
AT_3 = torch.arange(32) == 3
with torch.inference_mode():
    INFERRED = PIXELS.clone()
table(
    "tensors",
    dict=(P, PIXELS),
    tuple=((PIXELS,), PIXELS),
    UserDict=(collections.UserDict(P), PIXELS),
    a_mapping=(types.MappingProxyType(P), PIXELS),
    BatchFeature=(transformers.BatchFeature(P), PIXELS),
    channels_last=(PIXELS.to(memory_format=torch.channels_last), PIXELS),
    not_contiguous=(PIXELS.mT.contiguous().mT, PIXELS),
    with_a_gradient=(PIXELS.clone().requires_grad_(), PIXELS),
    with_a_history=(PIXELS.clone().requires_grad_() * 1, PIXELS),
    a_parameter=(torch.nn.Parameter(PIXELS), PIXELS),
    of_inference_mode=(INFERRED, PIXELS),
    a_negative_view=(torch.complex(PIXELS, -PIXELS).conj().imag, PIXELS),
    float64=(PIXELS.double(), PIXELS),
    half=Row(PIXELS.half(), PIXELS.half().float(), close=1e-3),
    bfloat16=Row(PIXELS.bfloat16(), PIXELS.bfloat16().float(), close=1e-2),
    beside_labels=(P | {"labels": torch.tensor([0, 1])}, PIXELS),
    beside_None=(P | {"bool_masked_pos": None}, PIXELS),
    with_a_flag=(P | {"return_dict": False}, PIXELS),
    array=no(PIXELS.numpy(), "ndarray", PIXELS),
    lists=no({"pixel_values": PIXELS.tolist()}, "list"),
    list_of_tensors=no({"pixel_values": list(PIXELS)}, "list of tensors"),
    bytes=no((PIXELS * 100).byte(), "", error=TargetError),
    sparse=no(PIXELS.to_sparse(), "dense ones", PIXELS),
    nested=no(torch.nested.nested_tensor([*PIXELS], layout=torch.jagged), "dense ones", PIXELS),
    NaN=no(torch.where(AT_3, torch.nan, PIXELS), "192 values that are NaN or infinite"),
    infinite=no(torch.where(AT_3, torch.inf, PIXELS), "192 values that are NaN or infinite"),
    one_sample_alone=no(PIXELS[0], ""),
)
ENCODED = TOKENIZER(U, return_tensors="pt", padding=True)
WORDS, M = ENCODED["input_ids"], ENCODED["attention_mask"]
IDS, LONG, KEYS = dict(ENCODED), WORDS.shape[1], M.bool()[:, None, None]
LOWEST = torch.finfo(torch.float32).min


def masked(mask):
    return {"input_ids": WORDS, "attention_mask": mask}


table(
    "ids",
    BatchEncoding=(ENCODED, IDS),
    UserDict=(collections.UserDict(IDS), IDS),
    mask_first=(dict(reversed(IDS.items())), IDS),
    int32=({"input_ids": WORDS.int(), "attention_mask": M.int()}, IDS),
    token_types=(IDS | {"token_type_ids": torch.zeros_like(WORDS)}, IDS),
    places_of_each=(IDS | {"position_ids": torch.arange(LONG).repeat(2, 1)}, IDS),
    beside_labels=(IDS | {"labels": torch.tensor([0, 1])}, IDS),
    positional=((WORDS, M), IDS),
    truth_mask=(masked(M.bool()), IDS),
    float_mask=(masked(M.float()), IDS),
    mask_of_keys=(masked(KEYS), IDS),
    added_mask=(masked(torch.zeros(2, 1, 1, LONG).masked_fill(~KEYS, LOWEST)), IDS),
    mask_of_three_axes=no(masked(M[:, None].expand(2, LONG, LONG)), ""),
    no_mask=(masked(None), {"input_ids": WORDS}),
    int16=no({"input_ids": WORDS.short()}, "Long, Int"),
    floats=no({"input_ids": WORDS.float()}, "Long, Int"),
    encoding_of_arrays=no(TOKENIZER(U, return_tensors="np", padding=True), "ndarray", IDS),
    encoding_of_lists=no(TOKENIZER(U), "list"),
    lists=no(WORDS.tolist(), ""),
    too_long=no({"input_ids": WORDS.repeat(1, 20)}, "must match the existing size"),
    ids_beyond=no({"input_ids": WORDS + 100}, "index out of range"),
)
N = torch.arange(10).reshape(2, 5)
X = SERIES
table("my ids", int32=(N.int(), N), dict=({"x": N}, N), uint16=no(N.to(torch.uint16), ""))
table("my ids", array=no(N.numpy(), "ndarray", N))
table(
    "my model",
    dict=({"x": X}, X),
    expanded=(X[:1].expand(2, -1, -1), X[:1].repeat(2, 1, 1)),
    float64=no(X.double(), "same dtype"),
    array=no(X.numpy(), "ndarray", X),
    lists=no(X.tolist(), ""),
)
G, PADS = torch.arange(3, 13).reshape(2, 5), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
PAST = torch.ones(5, 5, dtype=torch.bool).tril() & PADS.bool()[:, None, None]
ADDED = torch.zeros(PAST.shape).masked_fill(~PAST, LOWEST)
PROMPT = {"input_ids": G, "attention_mask": PADS}
table(
    "prompt",
    truth_mask=({"input_ids": G, "attention_mask": PADS.bool()}, PROMPT),
    whole_mask=({"input_ids": G, "attention_mask": PAST}, PROMPT),
    added_mask=({"input_ids": G, "attention_mask": ADDED}, PROMPT),
    a_mask_of_ones=({"input_ids": G, "attention_mask": torch.ones_like(G)}, {"input_ids": G}),
)
PAIR = {"text": U, "text_pair": ["good", "dull film"]}
LONGEST = " ".join([T] * 30)
READ = "tokenizer", "text pipeline"
table(
    *READ,
    list=([T], T),
    of_numpy=(np.str_(T), T),
    dict=({"text": T}, T),
    pair=({"text": U[0], "text_pair": "good"}, {"text": U[0], "text_pair": "good"}),
    white_space=(f"  {T.replace(' ', chr(10))}\t", T),
    broad_space=(T.replace(" ", "\u00a0"), T),
    Series=no(pd.Series(U), "", U),
    DataFrame=no(pd.DataFrame({"text": U}), "", U),
    array=no(np.array(U), "", U),
    bytes=no(T.encode(), ""),
    None_among_texts=no([T, None], ""),
    too_long=no(LONGEST, "must match the existing size"),
    words=no([T.split()], ""),
)
IDS, UNLIKE = TOKENIZER([T])["input_ids"], TOKENIZER([T, "good film"])
TALK = [{"role": "user", "content": T}]
TOKENIZER.chat_template = "[CLS] {% for m in messages %}{{ m.content }}{% endfor %} [SEP]"
table(
    "tokenizer",
    tuple=(tuple(U), U, "read as two samples"),
    pairs=([(T, "good"), (U[1], "dull film")], PAIR),
    named_list=({"text": U}, U),
    UserDict=(collections.UserDict({"text": T}), T),
    cut=({"text": LONGEST, "truncation": True, "max_length": 6}, T),
    emojis=("the 🙂 film", "the § film"),
    array_of_one=no(np.array(T), "does not read", T),
    named_Series=no({"text": pd.Series(U)}, "list(inputs['text'])", U),
    Index=no(pd.Index(U), "list(inputs)", U),
    table_without_texts=no(pd.DataFrame({"a": [1.0]}), "does not read"),
    empty_table=no(pd.DataFrame({"text": []}), "does not read"),
    ids_of_one=no(IDS[0], "[None]   # of ids", T),
    ids=no(IDS, "of ids", T),
    ids_in_an_array=no(np.array(IDS), "of ids", T),
    ids_of_two_lengths=no(UNLIKE["input_ids"], "processor.pad", [T, "good film"]),
    a_batch_without_tensors=no(TOKENIZER([T]), "torch.as_tensor(rows)", T),
    one_without_tensors=no(TOKENIZER(T), "torch.as_tensor(rows)[None]", T),
    arrays_by_name=no(dict(TOKENIZER([T], return_tensors="np")), "torch.as_tensor(rows)", T),
    two_lengths_without_tensors=no(UNLIKE, "processor.pad", [T, "good film"]),
    messages=no(TALK, "processor.apply_chat_template(inputs, add", T),
    conversations=no([TALK, TALK], "padding=True", [T, T]),
    named_messages=no({"messages": TALK}, "apply_chat_template(inputs['messages']", T),
    path=no(written("a.txt", T.encode()), "does not read", T),
    empty=("", [""]),
)
table(
    "command, a text",
    option=(["--text", T], [T]),
    file=(["--text-file", written("a.txt", f"{T}\r\n".encode())], [T]),
    file_with_a_mark=(["--text-file", written("a.txt", f"\ufeff{T}\n".encode())], [T]),
    cut=([LONGEST, "--max-length", "6"], [T]),
    empty=no([" "], "is empty"),
)
SOUND = np.random.default_rng(0).standard_normal(3200).astype(np.float32) / 8
WHOLE = (SOUND * 30000).astype(np.int16)
QUIET = WHOLE.astype(np.float32) / 32768
BYTES = ((WHOLE >> 8) + 128).astype(np.uint8)
table(
    "sound",
    "sound as it is",
    "sound pipeline",
    float64=(SOUND.astype(np.float64), SOUND),
    half=(SOUND.astype(np.float16), SOUND.astype(np.float16).astype(np.float32)),
    int16=(WHOLE, QUIET),
    int32=(WHOLE.astype(np.int32) << 16, QUIET),
    uint8=(BYTES, (WHOLE >> 8).astype(np.float32) / 128),
    strided=(np.repeat(SOUND, 2)[::2], SOUND),
    several=([SOUND, WHOLE], [SOUND, QUIET]),
    NaN=no(np.where(SOUND > 0.3, np.nan, SOUND).astype(np.float32), "NaN or infinite"),
    path=no("a.wav", ""),
    stereo=no(np.stack([SOUND, SOUND], 1), ""),
    batch=no(np.stack([SOUND, SOUND]), ""),
)
table(
    "sound",
    numbers=no(SOUND.tolist(), "does not read", SOUND),
    at_8_kHz=no({"raw_speech": SOUND, "sampling_rate": 8000}, "does not read", SOUND),
    named=({"raw_speech": SOUND, "sampling_rate": 16000}, SOUND),
    Series=no(pd.Series(SOUND), "does not read", SOUND),
    tensor=no(torch.from_numpy(SOUND), ""),
)
table("sound pipeline", named=({"raw": SOUND, "sampling_rate": 16000}, SOUND))


def same(y):
    return y


Outputs = collections.namedtuple("Outputs", "logits extra")
Logits = dataclasses.make_dataclass("Logits", ["logits", ("loss", object, None)])
table(
    "output",
    tuple=(lambda y: (y,), same),
    list=(lambda y: [y], same),
    dict=(lambda y: {"logits": y, "hidden": 2 * y}, same),
    named_tuple=(lambda y: Outputs(y, None), same),
    dataclass=(lambda y: Logits(y), same),
    UserDict=(lambda y: collections.UserDict(logits=y), same),
    ModelOutput=(lambda y: transformers.utils.ModelOutput(logits=y), same),
    after_None=(lambda y: (None, "name", y), same),
    beside_classes=(lambda y: (y, y.argmax(1)), same),
    float64=(lambda y: y.double(), same),
    two=no(lambda y: (y, 2 * y), "2 floating outputs", error=TargetError),
    array=no(lambda y: y.detach().numpy(), "without a tensor", error=CaptureError),
)
table(
    "target",
    of_numpy=(np.int64(1), 1),
    tensor_of_one=(torch.tensor(1), 1),
    list=([1, np.int64(1)], 1),
    array=(np.array([1, 1]), 1),
    tensor=(torch.tensor([1, 1], dtype=torch.int32), 1),
    tuple=((1,), 1),
    from_the_end=(-2, 1),
    label=("dog", 1),
    label_of_numpy=(np.str_("dog"), 1),
    labels=(["dog", 1], 1),
    labels_in_an_array=(np.array(["dog", "dog"]), 1),
    labels_in_a_Series=(pd.Series(["dog", "dog"]), 1),
    other_case=no("Dog", "no label", 1, TargetError),
    float=no(1.0, "is float", 1, TargetError),
    slice=no(slice(1, 2), "is slice", 1, TargetError),
    one_hot=no(torch.eye(3, dtype=torch.long)[[1, 1]], "3 indices", 1, TargetError),
    beyond=no(9, "out of range", 1, TargetError),
)
table(
    "next token",
    of_numpy=(np.int64(9), 9),
    from_the_end=((-1, -22), 9),
    tensor=(torch.tensor([[4, 9], [4, 9]]), 9),
    value=(relprop.targets.token(9), 9),
)
COMMAS = "a.csv", b"text,label\none,1\ntwo,0\n"
NAMES = "a.csv", b"text,label\none,pos\ntwo,neg\n"


def lines(content, ending="csv", **options):
    content = content if isinstance(content, bytes) else content.encode()
    return f"a.{ending}", content, options


table(
    "labels",
    CRLF=(lines("text,label\r\none,1\r\ntwo,0\r\n"), COMMAS),
    mark_of_byte_order=(lines("\ufefftext,label\none,1\ntwo,0\n"), COMMAS),
    quotes=(lines('"text","label"\n"one","1"\n"two","0"\n'), COMMAS),
    floats=(lines("text,label\none,1.0\ntwo,0.0\n"), COMMAS),
    blank_lines=(lines("\ntext,label\n\none,1\ntwo,0\n\n"), COMMAS),
    TSV=(lines("text\tlabel\none\t1\ntwo\t0\n", "tsv"), COMMAS),
    other_columns=(lines("a,b\none,1\ntwo,0\n", text="a", label="b"), COMMAS),
    JSON_lines=(lines('{"text":"one","label":1}\n{"text":"two","label":0}', "jsonl"), COMMAS),
    JSON_texts=(lines('{"text":"one","label":"1"}\n{"text":"two","label":"0"}', "jsonl"), COMMAS),
    JSON_floats=(lines('{"text":"one","label":1.0}\n{"text":"two","label":0.0}', "jsonl"), COMMAS),
    JSON_mark=(
        lines('\ufeff{"text":"one","label":1}\r\n{"text":"two","label":0}', "jsonl"),
        COMMAS,
    ),
    spaces=(lines("text,label\none, 1\ntwo, 0\n"), COMMAS),
    NaN=(lines("text,label\none,1\ntwo,NaN\n"), lines("text,label\none,1\ntwo,\n")),
    names=(lines("label,text\r\npos,one\r\nneg,two\r\n"), NAMES),
    names_of_the_model=(lines(NAMES[1], classes=("neg", "pos")), NAMES),
    semicolons=no(lines("text;label\none;1\ntwo;0\n"), "columns are told by commas", COMMAS),
    signs=no(lines("text,label\none,1\ntwo,-1\n"), "labels are -1 and 1"),
    fractions=no(lines("text,label\none,0.5\ntwo,1\n"), "numbers with fractions"),
)
