"""The functions that are written in many ways.

Seeds are those at which every method says something about every sample (maps of zeros are easily
equal), and rounding stays small: where the weights differ by one part in 1e13, scores and blocks
differ by less than the tolerance.
"""

from tests.spellings.model import Base

#: Vectors in, everything plain: the base of whatever needs nothing special.
PLAIN = Base("plain", seed=15)
#: A class token in front, which the head reads, as in ViT.
START = Base("start", start=True, pool="class", seed=56)
#: Ids in, norms after the sums, the first token read, as in BERT.
IDS = Base("ids", ids=True, post=True, activation="relu", pool="class", seed=25)
#: Ids and which of them are real: keys hidden, real positions averaged.
PADDED = Base("padded", ids=True, padded=True, pool="kept", seed=52)
#: Each token sees those before it, the last one is read, as in GPT-2.
CAUSAL = Base("causal", ids=True, causal=True, activation="gelu_tanh", pool="last", seed=9)
#: Both masks at once.
BOTH = Base("both", ids=True, causal=True, padded=True, pool="kept", seed=9)
#: Both masks, and the last real position is read, as in GPT-2's classifier.
ENDED = Base("ended", ids=True, causal=True, padded=True, pool="end", seed=9)
#: Rotary positions, RMS norms, a gated MLP, no biases, as in Llama.
LLAMA = Base(
    "llama", ids=True, causal=True, norm="rms", activation="silu", gated=True, pool="last",
    rotary="halves", table=False, bias=False, seed=16,
)  # fmt: skip
#: The same positions, features paired with their neighbours.
PAIRS = Base("pairs", ids=True, rotary="pairs", table=False, norm="rms", seed=1)
#: Two heads' queries share one head's keys and values.
GROUPED = Base("grouped", ids=True, heads=4, seed=6)
#: Embeddings are multiplied by a number, as in Gemma and T5's relatives.
SCALED = Base("scaled", ids=True, scale=2.5, norm="rms")
#: A gate without anything else special.
GATED = Base("gated", gated=True, activation="gelu", seed=1)
#: A learned number for every head and distance is added to the scores, as in Swin and T5.
RELATIVE = Base("relative", relative=True, seed=1)
#: The largest of each feature's numbers is read, of whichever token.
LARGEST = Base("largest", pool="largest", seed=6)
#: Each token goes to one of three MLPs.
EXPERTS = Base("experts", experts=3, seed=20)

#: Queries may attend to nothing, as with a sink whose value is 0.
BESIDE = Base("beside", beside=True, seed=15)
BESIDE_HIDDEN = Base("beside_hidden", beside=True, ids=True, padded=True, pool="kept", seed=9)

SQUARED = Base("squared", weigh="square")
ROOTED = Base("rooted", weigh="root")
THRESHOLDED = Base("thresholded", weigh="threshold", seed=14)
RENORMALISED = Base("renormalised", weigh="renormalised", seed=22)
HALVED = Base("halved", weigh="half", seed=46)

QUICK = Base("quick_gelu", activation="quick_gelu", seed=15)
TANH = Base("gelu_tanh", activation="gelu_tanh", seed=15)
SILU = Base("silu", activation="silu", seed=15)
RELU = Base("relu", activation="relu", seed=14)
SQUARED_RELU = Base("squared_relu", activation="squared_relu", seed=14)
HARDSWISH = Base("hardswish", activation="hardswish")
SOFTPLUS = Base("softplus", activation="softplus", seed=22)
MISH = Base("mish", activation="mish", seed=14)
