"""Checkpoints: any state comes back as it was; a crash while writing leaves the one before."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadData
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint

STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(state=st.dictionaries(st.text(), STATES))
@settings(max_examples=50, deadline=None)
def test_plain_states_come_back(tmp_path_factory: pytest.TempPathFactory, state: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(folder, "ana", state)
    assert read_checkpoint(folder, "ana") == state


def test_arrays_and_generators_come_back_writable(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    generator.random(3)
    arrays = {"w": np.arange(6.0).reshape(2, 3).T, "words": np.array([2**63 + 1], np.uint64), "empty": np.empty(0)}
    write_checkpoint(tmp_path, "ana", {"arrays": arrays, "random": generator.bit_generator.state})
    state = read_checkpoint(tmp_path, "ana")
    assert state is not None
    for name, array in arrays.items():
        assert state["arrays"][name].dtype == array.dtype
        assert np.array_equal(state["arrays"][name], array)
        assert state["arrays"][name].flags.writeable
    again = np.random.default_rng(0)
    again.bit_generator.state = state["random"]
    assert again.random() == generator.random()


def test_a_crash_while_writing_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "ana", {"w": np.ones(3), "n": 1})
    write_checkpoint(tmp_path, "ana", {"w": np.full(3, 2.0), "n": 2})
    # The third one got as far as its arrays: they replaced the first one's file, not the second's.
    index = (tmp_path / "ana.json").read_bytes()
    write_checkpoint(tmp_path, "ana", {"w": np.full(3, 3.0), "n": 3})
    (tmp_path / "ana.json").write_bytes(index)
    state = read_checkpoint(tmp_path, "ana")
    assert state is not None and state["n"] == 2 and np.array_equal(state["w"], np.full(3, 2.0))


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path, "ana") is None


def test_what_is_not_plain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object"):
        write_checkpoint(tmp_path, "ana", {"x": object()})


@pytest.mark.parametrize("how", ["empty", "cut", "changed", "gone"])
@pytest.mark.parametrize("which", ["party.json", "party.1.safetensors"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, which: str, how: str) -> None:
    write_checkpoint(tmp_path, "party", {"weights": np.arange(50.0), "text": "as it was"})
    path = tmp_path / which
    if how == "gone" and which.endswith("json"):
        path.unlink()
        assert read_checkpoint(tmp_path, "party") is None
        return
    whole = path.read_bytes()
    spot = whole.rindex(b"as it was") if which.endswith("json") else len(whole) - 3  # content that could be anything
    changed = whole[:spot] + b"b" + whole[spot + 1 :]
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "changed": changed, "gone": b""}[how])
    if how == "gone":
        path.unlink()
    with pytest.raises(BadData, match=f"{tmp_path}/party.* is damaged"):
        read_checkpoint(tmp_path, "party")
