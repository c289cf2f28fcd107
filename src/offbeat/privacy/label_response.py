"""Label privacy by randomised response: every label is perhaps replaced once, before training, and never looked at
again. All that is computed afterwards is post-processing, however long training lasts: epsilon does not grow.

With K classes a label is kept with probability e^epsilon / (e^epsilon + K - 1) and is each other class with
probability 1 / (e^epsilon + K - 1). The de-biased target (answer - other) / (keep - other) has the true one as its
mean, so gradients stay unbiased and probabilities stay calibrated.

Each label takes one random word of 64 bits, and each other class the same number of words, rounded up: the answers
are drawn exactly, and the probabilities of one answer under two labels differ by a factor of at most e^epsilon.
"""

import math
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob
from offbeat.privacy.noise import Stream

Targets = NDArray[np.float64]
EPSILON_MOST = 100.0
"""Beyond, no label would ever change: a guarantee by name only."""


def response_probabilities(epsilon: float, classes: int) -> tuple[float, float]:
    """(probability of keeping the label, probability of each other class)."""
    if not epsilon > 0:
        raise BadJob(f"label_dp_epsilon must be above 0; got {epsilon}. 2 to 3 costs little accuracy.")
    if not epsilon <= EPSILON_MOST:
        raise BadJob(
            f"label_dp_epsilon must be at most {EPSILON_MOST:g}; got {epsilon}, with which no label would ever change. "
            "2 to 3 costs little accuracy; leave it out for labels as they are."
        )
    other = 1.0 / (math.exp(epsilon) + classes - 1)
    return math.exp(epsilon) * other, other


def words_for_other(epsilon: float, classes: int) -> int:
    """How many of the 2^64 words answer with one class that is not the label's, never fewer than 1/(e^epsilon + K - 1)
    of them."""
    with localcontext() as context:
        context.prec = 80
        return int(2**64 / (Decimal(epsilon).exp() + classes - 1)) + 1


def private_targets(targets: Targets, epsilon: float, stream: Stream) -> Targets:
    """Targets of zeros and ones (one column: 0 or 1; more: one-hot), answered at random and de-biased."""
    binary = targets.shape[1] == 1
    classes = 2 if binary else targets.shape[1]
    if not np.all((targets == 0) | (targets == 1)):
        raise BadJob("label_dp_epsilon works on classes; these targets are numbers. Leave it out for regression.")
    keep, other = response_probabilities(epsilon, classes)
    share = words_for_other(epsilon, classes)
    label = targets[:, 0].astype(np.int64) if binary else np.argmax(targets, axis=1)
    first, words = np.uint64(2**64 - (classes - 1) * share), stream.words(len(label))
    moved = (label + 1 + ((words - first) // np.uint64(share)).astype(np.int64)) % classes
    answer = np.where(words < first, label, moved)
    hot = answer[:, None].astype(np.float64) if binary else np.eye(classes)[answer]
    return np.asarray((hot - other) / (keep - other))
