"""
A sound: when, and at which pitch
=================================

A recording as a spectrogram, read by an Audio Spectrogram Transformer. The model is small and
trained here, in some seconds, to say how high the beep in a noise is; when it beeps is known.
"""

import numpy as np
import torch
import transformers

import relprop

RATE, PITCHES = 16_000, {"low": 400, "middle": 1000, "high": 2500}


def record(count, seed):
    """Recordings of a second with a beep of a quarter, which of the pitches, and when it starts."""
    generator, time = np.random.default_rng(seed), np.arange(RATE) / RATE
    start, which = generator.uniform(0, 0.7, (count, 1)), generator.integers(3, size=count)
    beep = np.sin(2 * np.pi * np.array([*PITCHES.values()])[which, None] * time)
    beeps = beep * ((time > start) & (time < start + 0.25))
    noise = generator.standard_normal((count, RATE))
    return (0.3 * beeps + 0.02 * noise).astype(np.float32), which, start[:, 0]


extractor = transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=96, mean=-7.0, std=2.5)


def prepared(sounds):
    return extractor(list(sounds), sampling_rate=RATE, return_tensors="pt")["input_values"]


torch.manual_seed(0)
names = dict(enumerate(PITCHES))
sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
cut = {"patch_size": 8, "time_stride": 8, "frequency_stride": 8}
config = transformers.ASTConfig(
    **sizes,
    **cut,
    intermediate_size=96,
    max_length=96,
    num_mel_bins=32,
    id2label=names,
    initializer_range=0.1,
)
model = transformers.ASTForAudioClassification(config)
torch.nn.init.normal_(model.audio_spectrogram_transformer.embeddings.position_embeddings)
sounds, which, _ = record(256, seed=0)
spectrograms, labels = prepared(sounds), torch.from_numpy(which)
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for step in range(160):
    some = torch.arange(step * 32, step * 32 + 32) % 256
    loss = model(spectrograms[some], labels=labels[some]).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

# %%
# On recordings it has not heard. They are given as they are; the extractor makes the spectrograms.
# By this method scores have a sign: what speaks for the answer should be there while it beeps.

sounds, which, start = record(32, seed=1)
explanation = relprop.explain(model, list(sounds), processor=extractor, method="attnlrp")
right = np.mean(np.array(explanation.target) == which)
print(f"right: {right:.0%}")
heat, frames = explanation.heatmap().clamp(min=0), torch.arange(96) / 100
during = (frames > torch.tensor(start)[:, None]) & (frames < torch.tensor(start)[:, None] + 0.25)
shares = (heat * during[..., None]).sum((1, 2)) / heat.sum((1, 2))
print(
    f"while it beeps, in a quarter of the time: {shares.mean():.0%} of what speaks for the answer"
)

# %%
# The first of them on a card: the spectrogram as the model hears it, under its heat.

print(f"the beep: from {start[0]:.2f} to {start[0] + 0.25:.2f} seconds")
print(explanation.summary(0))
card = relprop.card(model, [sounds[0]], processor=extractor, method="attnlrp")
print(card.said)
card
