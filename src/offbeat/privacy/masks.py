"""Masks: uniform words modulo 2^64 that hide a share and vanish from the sum.

A share o is sent as fixed point, rint(o * 2^f) modulo 2^64, plus a mask. For a mask drawn uniformly, the masked word
is uniform and independent of o (a one-time pad), and the sum of the words is exact whatever the order of arrival.

*Pairwise* masks (after "Practical Secure Aggregation for Privacy-Preserving Machine Learning", without its recovery
phase): each pair of parties agrees on a secret with X25519 and HKDF; keyed BLAKE2b turns it into one AES-128 key per
context; the words of that key stream are the pair's masks. The lower of the two names adds a word, the other subtracts
it, so that all masks cancel in the asker's total. The asker and any coalition without the last two other parties learn
that total and nothing finer.

**A mask fits one question only.** The context names the run, the roster and its epoch, the asker, and what is being
summed; the place in the stream says which row of which batch or survey, by a rule that all parties know. So a question
has no free part: whoever asks two parties for different things gets two masks that do not cancel, which is uniform
noise.

**And one history.** What the asker has told a party so far gives a number, by a rule that only the pair knows
(`mask_kernel.py`). The words of a small answer are multiplied by it: they were read ahead, before anybody knew what
would be told. A large answer reads a part of the key stream that the number names. Whoever tells two parties different
things gets noise from then on.

Words are handed out once. A repeated place is refused: two values under one mask would reveal their difference.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from offbeat.errors import MaskReuse
from offbeat.privacy.mask_kernel import net_mask, numbers_told

FRACTION_BITS = 40
CHUNK_WORDS = 2048
GAPS_MAX = 256
SLACK_WORDS = 2
WORDS_MOST = 2**64  # of one branch of a key stream
ONE_BIT = np.uint64(1)


def scale_of(fraction_bits: int) -> float:
    return float(2**fraction_bits)


def range_limit(parties: int, fraction_bits: int = FRACTION_BITS) -> float:
    """Shares must lie strictly inside: then no sum of `parties` of them can wrap around."""
    return float(2.0 ** (63 - fraction_bits) / parties)


def pair_of(one: str, other: str) -> bytes:
    """Whose masks: part of every context. The pair's secret alone would not do: a third party may offer a key that is
    one of theirs, and be added where they are subtracted."""
    return "\0{}\0{}".format(*sorted((one, other))).encode()


class PairKeys:
    """One party's X25519 key and what it agreed on with its peers."""

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.publics: dict[str, bytes] = {}
        self._shared: dict[str, bytes] = {}

    def agree(self, peer: str, public: bytes) -> None:
        self._shared[peer] = self._secret_with(X25519PublicKey.from_public_bytes(public))
        self.publics[peer] = public

    def agree_with_itself(self, name: str) -> None:
        """For masks that nobody else shares."""
        self._shared[name] = self._secret_with(self._private.public_key())

    def _secret_with(self, public: X25519PublicKey) -> bytes:
        return HKDF(SHA256(), 32, salt=None, info=b"offbeat mask").derive(self._private.exchange(public))

    def knows(self, peer: str) -> bool:
        return peer in self._shared

    def stream_key(self, peer: str, context: bytes) -> bytes:
        """The AES-128 key for one purpose; both sides of the pair derive the same."""
        return blake2b(context, key=self._shared[peer], digest_size=16, person=b"offbeat stream").digest()


class KeyStream:
    """AES-128 in counter mode: for each `branch` an endless sequence of uint64 words, to be read from any position. The
    counter's upper half is the branch, the lower half the position: no two branches share a word."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor()
        self._at = (0, 0)  # branch and word

    def words(self, first: int, count: int) -> np.ndarray:
        start, width = _aligned(first, count)
        room = np.empty(width + SLACK_WORDS, np.uint64)
        self.read(start, bytes(8 * width), room.data.cast("B"))
        return room[first - start :][:count]

    def read(self, first: int, zeros: bytes, room: memoryview, branch: int = 0) -> None:
        """Write as many bytes as there are zeros, from an even word on. The cipher wants 15 bytes of room behind."""
        if (branch, first) != self._at:
            self._cipher.reset_nonce(((branch << 64) + first // 2).to_bytes(16, "big"))
        self._cipher.update_into(zeros, room)
        self._at = (branch, first + len(zeros) // 8)


def _aligned(first: int, count: int) -> tuple[int, int]:
    """(start, width) of the whole cipher blocks, of two words each, in which these words lie."""
    start = first - first % 2
    width = first - start + count
    return start, width + width % 2


class Once:
    """Which places of a stream were used. Requests may overtake each other: what was skipped may be used once, later,
    but only the newest gaps are remembered; older ones are never used."""

    def __init__(self) -> None:
        self.next = 0
        self.gaps: list[tuple[int, int]] = []

    def claim(self, first: int, stop: int) -> None:
        if first == self.next:
            self.next = stop
        elif first > self.next:
            self.gaps.append((self.next, first))
            self.next = stop
            del self.gaps[: max(0, len(self.gaps) - GAPS_MAX)]
        else:
            self._claim_gap(first, stop)

    def _claim_gap(self, first: int, stop: int) -> None:
        for position, (start, end) in enumerate(self.gaps):
            if start <= first and stop <= end:
                rest = [(start, first), (stop, end)]
                self.gaps[position : position + 1] = [gap for gap in rest if gap[0] < gap[1]]
                return
        raise MaskReuse(
            f"the masks of places {first} to {stop} were asked for a second time (the next unused place is "
            f"{self.next}). Answering would use one mask twice; refused."
        )

    def snapshot(self) -> list[Any]:
        return [self.next, [list(gap) for gap in self.gaps]]

    def restore(self, state: Iterable[Any]) -> None:
        following, gaps = state
        self.next, self.gaps = int(following), [(int(start), int(stop)) for start, stop in gaps]


class NetMask:
    """What one party adds for one asker: the sum of its signed pair masks, each place handed out once.

    A place has `stride` words: as many as its row, or its batch of rows, needs at most."""

    def __init__(
        self, plus: Iterable[bytes], minus: Iterable[bytes], stride: int = 1, chunk_words: int = CHUNK_WORDS
    ) -> None:
        added, subtracted = list(plus), list(minus)
        self._streams = [KeyStream(key) for key in (*added, *subtracted)]
        self._secrets = _secret_numbers([*added, *subtracted])
        self._added = len(added)
        self.stride, self._chunk = stride, chunk_words
        self._base = 0
        self._buffer = np.empty((len(self._streams), 0), np.uint64)
        self.used = Once()

    def take(self, first: int, places: int, count: int, told: bytes = b"") -> np.ndarray:
        """`count` words for places [first, first + places), bound to a digest; MaskReuse if any place was used."""
        if count < 1 or count > places * self.stride or (first + places) * self.stride > WORDS_MOST:
            raise ValueError(f"expected 1 to {places * self.stride} words for {places} places at {first}; got {count}")
        self.used.claim(first, first + places)
        word, history = first * self.stride, np.frombuffer(told, np.uint64)
        if count >= CHUNK_WORDS:
            return self._branched(word, count, history)
        at, words = word - self._base, self._buffer
        if at < 0:  # an old place: rare, and not worth losing what was read ahead
            words, at = self._read(word, count), word % 2
        elif at + count > words.shape[1]:
            words = self._buffer = self._read(word, max(count, self._chunk))
            at, self._base = word % 2, word - word % 2
        out = np.empty(count, np.uint64)
        net_mask(words, at, self._secrets, history, self._added, out)
        return out

    def _branched(self, first: int, count: int, told: np.ndarray) -> np.ndarray:
        """Each pair's words from the branch that what was told names; nothing is read ahead."""
        start, width = _aligned(first, count)
        total, words = np.zeros(width, np.uint64), np.empty(width + SLACK_WORDS, np.uint64)
        zeros, room = bytes(8 * width), words.data.cast("B")
        for place, branch in enumerate(numbers_told(self._secrets, told).tolist()):
            self._streams[place].read(start, zeros, room, branch)
            change = np.add if place < self._added else np.subtract
            change(total, words[:width], out=total)
        return total[first - start :][:count]

    def snapshot(self) -> list[Any]:
        return self.used.snapshot()

    def restore(self, state: Iterable[Any]) -> None:
        self.used.restore(state)

    def _read(self, first: int, count: int) -> np.ndarray:
        start, width = _aligned(first, count)
        flat = np.empty(len(self._streams) * width + SLACK_WORDS, np.uint64)
        zeros, room = bytes(8 * width), flat.data.cast("B")
        for place, stream in enumerate(self._streams):
            stream.read(start, zeros, room[8 * width * place :])
        return flat[:-SLACK_WORDS].reshape(len(self._streams), width)


def _secret_numbers(keys: list[bytes]) -> np.ndarray:
    """What makes a digest a factor that nobody outside the pair can foresee: see `mask_kernel.py`."""
    digests = b"".join(blake2b(b"offbeat told", key=key, digest_size=32).digest() for key in keys)
    return (np.frombuffer(digests, np.uint64) >> ONE_BIT).reshape(len(keys), 4)
