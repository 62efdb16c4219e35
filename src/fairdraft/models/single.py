"""A small Llama's forward of a few tokens of one row, compiled, on one thread.

Drafting is a chain of such forwards. As calls of torch each is some forty operations, which take
several times longer than the arithmetic of a network this small, and a second thread does not help.

Axes: M tokens of the row, W hidden width, H query heads, G key/value heads (H / G queries share
one), D head size, F width of the MLP, V output width, P positions, R cache rows, S slots of each.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu.kernel import kernel

__all__ = ["run_layer"]

# sums may be regrouped into vectors; NaN and infinity keep their meaning
_REGROUPED = {"reassoc", "contract", "nsz"}
_ZERO, _ONE = np.float32(0), np.float32(1)


@kernel
def run_layer(token_ids, hidden, layer, cache, place, angles, numbers, network, num_wanted):
    """Runs one layer over tokens of a row; all floats are float32.

    Args:
        token_ids: int64 [M] for the first layer, which embeds them; else [0].
        hidden: The layer's input [M, W], its output afterwards.
        layer: Norm [W], projections [(H + 2 G) D, W], output [W, H D], norm [W], gate and up
            [2 F, W], and down [W, F].
        cache: Keys and values [R, G, S, D]; the tokens' own are written.
        place: Cache row, and position of the first token, which is its slot too.
        angles: cos and signed sin of each position [P, 2, D].
        numbers: Epsilon of the norms, and scale of the scores.
        network: Embedding [V', W], last norm [W] and head [V, W].
        num_wanted: Of how many of the last tokens the logits are wanted: 0 but for the last layer.

    Returns:
        Logits [num_wanted, V].
    """
    norm, heads, output, mlp_norm, gate_up, down = layer
    keys, values = cache
    row, first = place
    epsilon, scale = numbers
    embedding, last_norm, head = network
    count = len(hidden)
    for m in range(len(token_ids)):
        hidden[m] = embedding[token_ids[m]]
    normed = np.empty_like(hidden)
    _normalize(hidden, norm, epsilon, normed)
    projected = np.empty((count, heads.shape[0]), np.float32)
    _multiply(normed, heads, projected)
    attended = np.zeros((count, output.shape[1]), np.float32)
    _attend(projected, first, angles, scale, keys[row], values[row], attended)
    _multiply(attended, output, normed)
    _add(hidden, normed)
    _normalize(hidden, mlp_norm, epsilon, normed)
    gated = np.empty((count, gate_up.shape[0]), np.float32)
    _multiply(normed, gate_up, gated)
    activated = np.empty((count, down.shape[1]), np.float32)
    _activate(gated, activated)
    _multiply(activated, down, normed)
    _add(hidden, normed)
    logits = np.empty((num_wanted, head.shape[0]), np.float32)
    _normalize(hidden[count - num_wanted :], last_norm, epsilon, normed)
    _multiply(normed[:num_wanted], head, logits)
    return logits


@njit(fastmath=_REGROUPED)
def _multiply(values, weight, out):
    """values [M, K] by weight [N, K], to out [M, N]; four rows of weights at a time."""
    count, depth = values.shape
    size = weight.shape[0]
    for n in range(0, size - 3, 4):
        first, second, third, fourth = weight[n], weight[n + 1], weight[n + 2], weight[n + 3]
        for m in range(count):
            row = values[m]
            a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
            for k in range(depth):
                value = row[k]
                a += value * first[k]
                b += value * second[k]
                c += value * third[k]
                d += value * fourth[k]
            out[m, n], out[m, n + 1], out[m, n + 2], out[m, n + 3] = a, b, c, d
    for n in range(size - size % 4, size):
        for m in range(count):
            out[m, n] = _dot(values[m], weight[n])


@njit(fastmath=_REGROUPED)
def _dot(left, right):
    total = _ZERO
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@njit
def _add(hidden, change):
    for m in range(hidden.shape[0]):
        for i in range(hidden.shape[1]):
            hidden[m, i] += change[m, i]


@njit
def _normalize(hidden, weight, epsilon, out):
    for m in range(hidden.shape[0]):
        row = hidden[m]
        mean = _dot(row, row) / np.float32(len(row))
        factor = _ONE / np.sqrt(mean + epsilon)
        for i in range(len(row)):
            out[m, i] = weight[i] * (row[i] * factor)


@njit
def _activate(gated, out):
    """SiLU of the first half times the second."""
    width = out.shape[1]
    for m in range(out.shape[0]):
        for i in range(width):
            gate = gated[m, i]
            out[m, i] = gate / (_ONE + np.exp(-gate)) * gated[m, width + i]


@njit
def _rotate(head, angles):
    """Rotates the two halves of a head in place."""
    half = len(head) // 2
    for i in range(half):
        low, high = head[i], head[half + i]
        head[i] = low * angles[0, i] + high * angles[1, i]
        head[half + i] = high * angles[0, half + i] + low * angles[1, half + i]


@njit(fastmath=_REGROUPED)
def _attend(projected, first, angles, scale, keys, values, out):
    """Attention of all heads, to out [M, H D], which holds zeros."""
    num_groups, _, size = keys.shape
    num_heads = out.shape[1] // size
    count = projected.shape[0]
    for m in range(count):
        heads = projected[m].reshape(-1, size)
        for h in range(num_heads + num_groups):
            _rotate(heads[h], angles[first + m])
        for g in range(num_groups):
            keys[g, first + m] = heads[num_heads + g]
            values[g, first + m] = heads[num_heads + num_groups + g]
    weights = np.empty(first + count, np.float32)
    for m in range(count):
        num_seen = first + m + 1
        heads, mixed = projected[m].reshape(-1, size), out[m].reshape(-1, size)
        for h in range(num_heads):
            g = h * num_groups // num_heads
            total = _weigh(heads[h], keys[g, :num_seen], scale, weights[:num_seen])
            for j in range(num_seen):
                share = weights[j] / total
                for i in range(size):
                    mixed[h, i] += share * values[g, j, i]


@njit
def _weigh(query, keys, scale, weights):
    """Writes exp(score - largest) of each key; returns their sum."""
    top = np.float32(-np.inf)
    for j in range(len(weights)):
        weights[j] = _dot(query, keys[j]) * scale
        # a NaN is never larger, and comes through below
        top = max(top, weights[j])
    total = _ZERO
    for j in range(len(weights)):
        weights[j] = np.exp(weights[j] - top)
        total += weights[j]
    return total
