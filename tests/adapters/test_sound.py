"""Sound and time series: which stretch of the recording a token was made from, in steps and in
seconds."""

import itertools
import warnings

import numpy as np
import pytest
import torch
import transformers

import relprop
from relprop.adapters.processing import processed
from relprop.adapters.sound import measured_clock
from relprop.errors import InputError, PaddingWarning
from tests.common.rows import only

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
WAVE = dict(
    SMALL,
    conv_dim=[8] * 7,
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
    vocab_size=20,
    classifier_proj_size=8,
)
RATE = 16000
PATCHES = {
    "context_length": 16,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "ffn_dim": 16,
}


def sound(samples, seed=0):
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


CLOCKS = {  # extractor: (time axis of its output, samples per step)
    "waveform": (transformers.Wav2Vec2FeatureExtractor(), 1, 1),
    "waveform, not normalised": (
        transformers.Wav2Vec2FeatureExtractor(do_normalize=False, sampling_rate=8000),
        1,
        1,
    ),
    "log mel, padded to 30 seconds": (
        transformers.WhisperFeatureExtractor(feature_size=16),
        2,
        160,
    ),
    "log mel, cut after a second": (
        transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1),
        2,
        160,
    ),
    "log mel, another hop": (
        transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=5, hop_length=200),
        2,
        200,
    ),
    "filter bank": (transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=300), 1, 160),
    "filter bank, normalised per recording": (transformers.Speech2TextFeatureExtractor(), 1, 160),
    "two frames in one": (transformers.SeamlessM4TFeatureExtractor(), 1, 320),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_the_clock_of_an_extractor_is_measured(name):
    extractor, axis, hop = CLOCKS[name]

    def extract(recording):
        return extractor(recording, sampling_rate=extractor.sampling_rate, return_tensors="pt")[
            extractor.model_input_names[0]
        ]

    assert measured_clock(extract, extractor.sampling_rate) == (
        axis,
        pytest.approx(hop / extractor.sampling_rate),
    )


def test_an_extractor_without_time_has_no_clock():
    assert (
        measured_clock(
            lambda recording: torch.tensor([[float(np.abs(recording).mean()), 1.0]]), RATE
        )
        is None
    )


def wave_model(**settings):
    torch.manual_seed(0)
    return transformers.Wav2Vec2ForSequenceClassification(
        transformers.Wav2Vec2Config(**WAVE, **settings)
    ).eval()


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_a_waveforms_tokens_are_25_milliseconds_every_20(norm):
    model = wave_model(feat_extract_norm=norm, num_labels=3)
    e = relprop.explain(
        model, sound(RATE // 2), 1, processor=transformers.Wav2Vec2FeatureExtractor()
    )
    assert e.grid is None and e.tokens is None
    assert len(e.scores[0]) == model._get_feat_extract_output_lengths(RATE // 2)
    starts = 0.02 * torch.arange(24, dtype=torch.float64)
    torch.testing.assert_close(e.seconds(), torch.stack([starts, starts + 0.025], 1))
    torch.testing.assert_close(e.seconds(rate=8000), 2 * e.seconds())
    assert e.spans[3].tolist() == [[960, 1360]]


def test_padding_of_a_shorter_recording_is_no_content():
    model = wave_model(num_labels=3, feat_extract_norm="layer")
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    e = relprop.explain(model, [sound(8000), sound(4200, 1)], 1, processor=extractor)
    middles = e.spans[:, 0].mean(1)
    assert e.content[0].all() and e.content[1].tolist() == (middles <= 4200).tolist()


@pytest.mark.parametrize(
    ("masked", "norm"),
    only([(False, "layer")], itertools.product([True, False, None], ["layer", "group"])),
)
def test_recordings_of_two_lengths_are_told_apart_from_their_padding(norm, masked):
    """Whether the extractor returns masks by default or not."""
    model, given = wave_model(feat_extract_norm=norm, num_labels=3), [sound(8000), sound(4000, 1)]
    options = {} if masked is None else {"return_attention_mask": masked}
    extractor = transformers.Wav2Vec2FeatureExtractor(**options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PaddingWarning)
        both = relprop.explain(model, given, 1, processor=extractor, method="rollout").scores
    assert ("without padding" in "".join(str(w.message) for w in said)) == (norm == "group")
    alone = relprop.explain(model, given[1], 1, processor=extractor, method="rollout").scores
    length = alone.shape[1]
    assert not both[1, length:].any()
    if norm == "layer":  # a norm over all samples sees the padding, mask or not
        torch.testing.assert_close(both[1:, :length], alone, rtol=1e-3, atol=1e-6)


def test_recordings_of_two_lengths_are_refused_where_no_mask_is_read():
    class Own(transformers.Wav2Vec2ForSequenceClassification):
        def forward(self, input_values):
            return super().forward(input_values)

    torch.manual_seed(0)
    model = Own(transformers.Wav2Vec2Config(**WAVE, num_labels=3)).eval()
    extractor = transformers.Wav2Vec2FeatureExtractor()
    with pytest.raises(relprop.errors.InputError, match="of 4000, 8000 samples are padded"):
        relprop.explain(model, [sound(8000), sound(4000, 1)], 1, processor=extractor)
    assert relprop.explain(model, [sound(4000), sound(4000, 1)], 1, processor=extractor)


@pytest.mark.parametrize("shape", [(2, 400), (400, 2)])
def test_sound_of_two_channels_is_refused_and_the_advice_works(shape):
    sound = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    for given in (sound, [sound]):
        with pytest.raises(InputError, match="one channel") as refused:
            processed(torch.nn.Identity(), given, extractor)
    exec(str(refused.value).split("then  ")[1], {}, known := {"sound": sound})
    assert known["sound"].shape == (400,)


def test_seconds_without_an_extractor_need_a_rate():
    e = relprop.explain(wave_model(num_labels=3), {"input_values": torch.randn(1, 4000)}, 1)
    with pytest.raises(relprop.errors.OptionError, match="rate=16000"):
        e.seconds()
    assert e.seconds(rate=RATE)[-1, 1] <= 0.25
    with pytest.raises(relprop.errors.OptionError, match="a positive number"):
        e.seconds(rate=0)


def test_a_log_mels_tokens(tmp_path):
    config = transformers.WhisperConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_mel_bins=16,
        max_source_positions=50,
        max_target_positions=8,
        vocab_size=30,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    inputs = {
        **extractor(sound(RATE), sampling_rate=RATE, return_tensors="pt"),
        "decoder_input_ids": torch.tensor([[3, 7, 8]]),
    }
    e = relprop.explain(model, inputs, (2, 9), processor=extractor)
    seconds = e["input_features"].seconds()
    assert list(e.streams) == ["input_features", "decoder_input_ids"] and len(seconds) == 50
    torch.testing.assert_close(
        seconds[10], torch.tensor([0.18, 0.23], dtype=torch.float64)
    )  # 5 frames of 10 ms around every second one
    assert seconds[0, 0] == 0 and seconds[-1, 1] == pytest.approx(1.0)
    assert e["input_features"].plot().axes[0].get_xlabel() == "seconds"
    again = relprop.load(e.save(tmp_path / "heard.safetensors"))
    assert torch.equal(again["input_features"].seconds(), seconds)
    with pytest.raises(relprop.errors.OptionError, match="how long a step"):
        e["decoder_input_ids"].seconds()


def test_patches_of_a_spectrogram_have_a_time_and_a_pitch():
    config = transformers.ASTConfig(
        **SMALL,
        patch_size=8,
        frequency_stride=6,
        time_stride=6,
        max_length=50,
        num_mel_bins=32,
        num_labels=3,
    )
    torch.manual_seed(0)
    e = relprop.explain(
        transformers.ASTForAudioClassification(config).eval(),
        sound(8000),
        1,
        processor=transformers.ASTFeatureExtractor(max_length=50, num_mel_bins=32),
    )
    assert e.grid == (8, 5) and e.image == (50, 32) and e.heatmap().shape == (1, 50, 32)
    assert e.source[:4].tolist() == [-1, -1, 0, 5], (
        "two tokens of the model's own, then patches, time running fastest"
    )
    assert (
        e.spans[3].tolist() == [[6, 14], [0, 8]]
        and e.content[0].tolist() == [False] * 2 + [True] * 40
    )
    seconds = e.seconds()
    assert seconds[:2].isnan().all() and seconds[3].tolist() == pytest.approx([0.06, 0.14])


def test_a_time_series_tokens_are_its_time_steps():
    config = transformers.PatchTSTConfig(
        num_input_channels=1,
        context_length=32,
        patch_length=8,
        patch_stride=4,
        d_model=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        ffn_dim=16,
        num_targets=3,
        use_cls_token=True,
    )
    torch.manual_seed(0)
    e = relprop.explain(
        transformers.PatchTSTForClassification(config).eval(),
        {"past_values": torch.randn(2, 32, 1)},
        1,
    )
    assert e.spans[1:, 0].tolist() == [[4 * i, 4 * i + 8] for i in range(7)]
    assert e.content.tolist() == [[False] + [True] * 7] * 2
    assert e.plot().axes[0].get_xlabel() == "step of the input"


def test_values_that_were_not_observed_are_no_content():
    config = transformers.PatchTSTConfig(**PATCHES, num_input_channels=1, num_targets=3)
    torch.manual_seed(0)
    model = transformers.PatchTSTForClassification(config).eval()
    values, observed = torch.zeros(2, 16, 1), torch.ones(2, 16, 1, dtype=torch.bool)
    values[:, 1::3] = 1.0
    assert relprop.explain(model, {"past_values": values}, 1).content.all(), (
        "a value of 0 is a value"
    )
    observed[1, 8:] = False
    e = relprop.explain(model, {"past_values": values, "past_observed_mask": observed}, 1)
    assert e.content.tolist() == [[True] * 4, [True, True, False, False]]


def series_by_patches():
    config = transformers.PatchTSTConfig(**PATCHES, num_input_channels=3, prediction_length=4)
    return transformers.PatchTSTForPrediction(config)


class SeriesByConvolution(torch.nn.Module):
    """Each channel through one convolution, as a sample of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Conv1d(1, 8, 3), torch.nn.Linear(8, 2)
        self.mix = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        y = self.embed(x.mT.flatten(0, 1)[:, None]).mT
        y = (y + self.mix(y, y, y, need_weights=False)[0]).mean(1)
        return self.head(y).unflatten(0, (len(x), -1))


@pytest.mark.parametrize("make", [series_by_patches, SeriesByConvolution])
def test_channels_of_a_series_are_hidden_one_by_one(make):
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 16, 3)

    def first_channel(output):
        return getattr(output, "prediction_outputs", output).movedim(1, -1).flatten(0)[0]

    e = relprop.explain(model, x, first_channel, method="occlusion")
    scores = e.scores.unflatten(1, (16, 3))
    assert scores[..., 0].abs().sum() > 0
    assert not scores[..., 1:].any()
