"""The rules once more, slowly: index by index, in float64, from the paper (Chefer, Gur & Wolf, CVPR
2021), for tests to compare with.

Loops over elements and ``math.fsum``; nothing here is taken from ``relprop.rules``. A denominator
of a magnitude below ``SMALLEST`` counts as zero, the library's documented convention; an add
divides first, so there only an exact zero does.

A *term* ``(i, j, value)`` says that output element ``i`` has a summand ``value`` = x_j·w_ji.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

SMALLEST = np.finfo(np.float64).tiny / np.finfo(np.float64).eps


@dataclass
class Answer:
    """Shares (one per operand, ``None``: nothing), what was lost in all, and how large the largest
    sum of |summands| was.

    ``known`` is False where Lemma 2's factor would be a quotient of two rounding errors.
    """

    shares: list
    lost: float
    gross: float
    known: bool = True


def indices(shape):
    return list(itertools.product(*(range(n) for n in shape)))


def under(index, shape):
    """The element of a tensor of this shape that is broadcast to ``index``."""
    return tuple(
        0 if n == 1 else i for i, n in zip(index[len(index) - len(shape) :], shape, strict=True)
    )


def gathered(shape, summands):
    """An array whose element j is the sum of all ``summands[j]``."""
    result = np.zeros(shape)
    for j, values in summands.items():
        result[j] = math.fsum(values)
    return result


def answer(relevance, shares, summands=(), known=True):
    """What was lost is what is in no share; the gross sum is that of all |summands|, or of |R|."""
    kept = math.fsum(v for share in shares if share is not None for v in share.flat)
    gross = max(
        math.fsum(abs(v) for v in relevance.flat),
        math.fsum(abs(v) for values in summands for v in values),
    )
    return Answer(shares, math.fsum(relevance.flat) - kept, gross, known)


def collect(summands, j, value):
    summands.setdefault(j, []).append(value)


# ---- the terms of operations that sum


def linear_terms(x, weight):
    return [
        ((*n, o), (*n, j), x[*n, j] * weight[o, j])
        for n in indices(x.shape[:-1])
        for o in range(weight.shape[0])
        for j in range(x.shape[-1])
    ]


def conv2d_terms(x, weight, stride, padding, dilation, groups):
    """Every output pixel o at (p, q) sees input pixel (p·stride + a·dilation − padding, ...) of its
    group through weight[o, c, a, b]."""
    outputs, per_group, high, wide = weight.shape
    terms = []
    for n in range(x.shape[0]):
        for o, c, a, b in indices((outputs, per_group, high, wide)):
            channel = o // (outputs // groups) * per_group + c
            for p in range(window_count(x.shape[2], high, stride[0], padding[0], dilation[0])):
                for q in range(window_count(x.shape[3], wide, stride[1], padding[1], dilation[1])):
                    y, z = (
                        p * stride[0] + a * dilation[0] - padding[0],
                        q * stride[1] + b * dilation[1] - padding[1],
                    )
                    if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
                        terms.append(
                            (
                                (n, o, p, q),
                                (n, channel, y, z),
                                x[n, channel, y, z] * weight[o, c, a, b],
                            )
                        )
    return terms


def window_count(length, window, stride, padding, dilation=1):
    return (length + 2 * padding - dilation * (window - 1) - 1) // stride + 1


def pooled_terms(x, window):
    """Average pooling with stride = window and no padding."""
    return [
        ((*n, y // window, z // window), (*n, y, z), x[*n, y, z] / window**2)
        for n in indices(x.shape[:-2])
        for y in range(x.shape[-2] // window * window)
        for z in range(x.shape[-1] // window * window)
    ]


def reduced_terms(x, dims, keepdim, weight):
    """sum (``weight`` 1) and mean (1/n) over ``dims``."""
    dims = {d % x.ndim for d in dims}
    terms = []
    for j in indices(x.shape):
        i = tuple(0 if d in dims else v for d, v in enumerate(j) if keepdim or d not in dims)
        terms.append((i, j, x[j] * weight))
    return terms


def probed_terms(x, function):
    """The terms of any operation linear in x, found by feeding it one-hots: w_ji is what comes out
    at i when only x_j = 1."""
    terms = []
    for j in indices(x.shape):
        hot = np.zeros(x.shape)
        hot[j] = 1
        column = function(hot)
        terms += [(i, j, x[j] * column[i]) for i in indices(column.shape) if column[i] != 0]
    return terms


def matmul_terms(u, v):
    """Output element (..., r, c) has the summands u[..., r, k]·v[..., k, c]; a vector lacks its r
    or c."""
    rows, columns = [(u.shape[-2])] if u.ndim > 1 else [], [v.shape[-1]] if v.ndim > 1 else []
    lead = np.broadcast_shapes(u.shape[:-2], v.shape[:-2])
    terms = []
    for n in indices(lead):
        for r in indices(rows):
            for c in indices(columns):
                for k in range(u.shape[-1]):
                    j, h = (*under(n, u.shape[:-2]), *r, k), (*under(n, v.shape[:-2]), k, *c)
                    terms.append(((*n, *r, *c), j, h, u[j] * v[h]))
    return terms


# ---- the rules


def share_among(relevance, shape, terms):
    """R_j = Σ_i term_ji / (Σ_j' term_j'i) · R_i over the terms given: the common form of Eq. 2, 4
    and 5."""
    below, summands = {}, {}
    for i, _, value in terms:
        collect(below, i, value)
    for i, j, value in terms:
        denominator = math.fsum(below[i])
        if abs(denominator) >= SMALLEST:
            collect(summands, j, value / denominator * relevance[i])
    return answer(relevance, [gathered(shape, summands)], summands.values())


def eq5(relevance, x, terms):
    """Only the terms x_j·w_ji ≥ 0."""
    return share_among(relevance, x.shape, [t for t in terms if t[2] >= 0])


def eq4(relevance, x, terms):
    """Only the terms x_j⁺·w_ji⁺."""
    return share_among(relevance, x.shape, [t for t in terms if x[t[1]] > 0 and t[2] >= 0])


def lrp_epsilon(relevance, x, terms, bias=None, bias_axis=-1, epsilon=1e-6):
    """R_j = Σ_i x_j·w_ji / (z_i + ε·sgn z_i) · R_i, z with its bias, which takes its own part. Not
    known where rounding decides the sign of a z_i."""
    below, summands, absorbed = {}, {}, {}
    for i, _, value in terms:
        collect(below, i, value)
    for i in indices(relevance.shape) if bias is not None else ():
        collect(below, i, bias[i[bias_axis]])
    z = {i: math.fsum(values) for i, values in below.items()}
    gross = {i: math.fsum(map(abs, values)) for i, values in below.items()}
    known = all(value == 0 or abs(value) > 1e-12 * gross[i] for i, value in z.items())
    z = {i: value + (epsilon if value >= 0 else -epsilon) for i, value in z.items()}
    for i, j, value in terms:
        collect(summands, j, value / z[i] * relevance[i])
    for i in z if bias is not None else ():
        collect(absorbed, i[bias_axis], bias[i[bias_axis]] / z[i] * relevance[i])
    shares = [gathered(x.shape, summands)] + (
        [gathered(bias.shape, absorbed)] if bias is not None else []
    )
    return answer(relevance, shares, [*summands.values(), *absorbed.values()], known)


def halves(relevance, u, v, terms):
    """Eq. 6 for a product of two activations, and the ½ that Lemma 2 amounts to there; terms ``(i,
    j, k, u_j·v_k)``."""
    below, to_u, to_v = {}, {}, {}
    for i, _, _, value in terms:
        collect(below, i, value)
    for i, j, k, value in terms:
        z = math.fsum(below[i])
        if abs(z) >= SMALLEST:
            collect(to_u, j, 0.5 * (value / z * relevance[i]))
            collect(to_v, k, 0.5 * (value / z * relevance[i]))
    return answer(
        relevance,
        [gathered(u.shape, to_u), gathered(v.shape, to_v)],
        [*to_u.values(), *to_v.values()],
    )


def product(relevance, u, v):
    """Elementwise u·v with broadcasting."""
    return halves(
        relevance,
        u,
        v,
        [
            (i, under(i, u.shape), under(i, v.shape), u[under(i, u.shape)] * v[under(i, v.shape)])
            for i in indices(relevance.shape)
        ],
    )


def quotient(relevance, u, v):
    """u/v by Eq. 6: u·∂(u/v)/∂u = z and v·∂(u/v)/∂v = −z, so R^u = R and R^v = −R; Lemma 2 turns
    the sign and halves both."""
    to_u, to_v = {}, {}
    for i in indices(relevance.shape):
        j, k = under(i, u.shape), under(i, v.shape)
        if abs(u[j] / v[k]) >= SMALLEST:
            collect(to_u, j, relevance[i] / 2)
            collect(to_v, k, relevance[i] / 2)
    return answer(relevance, [gathered(u.shape, to_u), gathered(v.shape, to_v)])


def add(relevance, u, v, *, sign=1, relative=0.0, epsilon=0.0, normalised=True):
    """Eq. 6 for u + sign·v, then Lemma 2. ``relative``: denominator z + ε·sgn(z)·(|u| + |v|);
    ``epsilon``: z + ε·sgn(z)."""
    to_u, to_v = {}, {}
    for i in indices(relevance.shape):
        j, k = under(i, u.shape), under(i, v.shape)
        a, b = u[j], sign * v[k]
        z = a + b
        z += (relative * (abs(a) + abs(b)) + epsilon) * (1 if z >= 0 else -1)
        if z != 0:
            collect(to_u, j, a / z * relevance[i])
            collect(to_v, k, b / z * relevance[i])
    if normalised:
        return lemma2(relevance, [to_u, to_v], [u.shape, v.shape])
    return answer(
        relevance,
        [gathered(u.shape, to_u), gathered(v.shape, to_v)],
        [*to_u.values(), *to_v.values()],
    )


def lemma2(relevance, summands, shapes):
    """R̄^u = R^u · |ΣR^u|/(|ΣR^u| + |ΣR^v|) · ΣR/ΣR^u, likewise R̄^v; if both sums are 0, all is
    lost. A branch whose own sum is 0 keeps its signs."""
    sums = [math.fsum(v for values in part.values() for v in values) for part in summands]
    gross = math.fsum(abs(v) for part in summands for values in part.values() for v in values)
    scale, arrived = math.fsum(abs(s) for s in sums), math.fsum(relevance.flat)
    signs = [math.copysign(1, s) if s else math.copysign(1, arrived) for s in sums]
    factors = [sign * arrived / scale if scale > 0 else 0.0 for sign in signs]
    scaled = [
        {j: [f * v for v in values] for j, values in part.items()}
        for f, part in zip(factors, summands, strict=True)
    ]
    shares = [gathered(shape, part) for shape, part in zip(shapes, scaled, strict=True)]
    noise = 1e-9 * gross
    known = all(s == 0 or abs(s) > noise for s in sums) and (
        scale > noise or arrived == 0 or gross == 0
    )
    return answer(relevance, shares, [values for part in scaled for values in part.values()], known)


def generic(relevance, inputs, output, jacobians):
    """Eq. 2 for any operation, R_j = Σ_i x_j·∂z_i/∂x_j·R_i/z_i; with several operands, Lemma 2.
    ``jacobians[k][(*i, *j)]``."""
    parts = []
    for x, jacobian in zip(inputs, jacobians, strict=True):
        part = {}
        for i in indices(output.shape):
            for j in indices(x.shape) if abs(output[i]) >= SMALLEST else ():
                collect(part, j, x[j] * jacobian[(*i, *j)] * relevance[i] / output[i])
        parts.append(part)
    if len(parts) == 1:
        return answer(relevance, [gathered(inputs[0].shape, parts[0])], parts[0].values())
    return lemma2(relevance, parts, [x.shape for x in inputs])


def carry(relevance, x):
    """R_in = R_out, summed over what was broadcast."""
    summands = {}
    for i in indices(relevance.shape):
        collect(summands, under(i, x.shape), relevance[i])
    return answer(relevance, [gathered(x.shape, summands)])


def moved(relevance, inputs, function):
    """Where the values came from, found by one-hots: what stands at i when only x_j = 1 is how much
    of R_i goes to j."""
    shares, nothing = [], function(*(np.zeros(x.shape) for x in inputs))
    for at, x in enumerate(inputs):
        share = np.zeros(x.shape)
        for j in indices(x.shape):
            hot = [np.zeros(y.shape) for y in inputs]
            hot[at][j] = 1
            came = np.where(np.isinf(nothing), 0.0, function(*hot)) - np.where(
                np.isinf(nothing), 0.0, nothing
            )
            share[j] = math.fsum(came[i] * relevance[i] for i in indices(relevance.shape))
        shares.append(share)
    return answer(relevance, shares)


def max_pooled(relevance, x, window):
    """Everything to the largest element under the window, to the first of equals."""
    summands = {}
    for *n, p, q in indices(relevance.shape):
        under_window = [(*n, p * window + a, q * window + b) for a, b in indices((window, window))]
        collect(summands, max(under_window, key=lambda j: x[j]), relevance[*n, p, q])
    return answer(relevance, [gathered(x.shape, summands)])
