"""Two hand-written samplers in a test: `pytest examples/test_lossless.py`.

Both draft one token from q and test it against p. The first draws the replacement of a rejected
draft with noise of its own; the second with the noise that drew the draft, as engines did that
keyed their noise by position alone. Acceptance rates cannot tell them apart.
"""

import numpy as np
import pytest

from fairdraft.testing import Round, SamplerSubject

P = np.array([0.05, 0.10, 0.15, 0.30, 0.40])
Q = np.array([0.40, 0.30, 0.15, 0.10, 0.05])


def draw(law, noise):
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(law) + noise))


def speculate(rng, shares_noise):
    noise = rng.gumbel(size=5)
    draft = draw(Q, noise)
    if rng.random() * Q[draft] < P[draft]:
        return Round([draft, draw(P, rng.gumbel(size=5))], [draft])
    residual = np.maximum(P - Q, 0)
    return Round([draw(residual, noise if shares_noise else rng.gumbel(size=5))], [draft])


def subject(shares_noise):
    return SamplerSubject(
        lambda context, rng: speculate(rng, shares_noise),
        target=lambda context: P,
        draft=lambda context: Q,
        sampler="gumbel",
    )


def test_fresh_noise_keeps_the_law(assert_lossless):
    assert_lossless(subject(shares_noise=False), eps=0.05)


def test_shared_noise_is_caught_and_named(assert_lossless):
    with pytest.raises(AssertionError, match="draft and residual share noise"):
        assert_lossless(subject(shares_noise=True), eps=0.005)
