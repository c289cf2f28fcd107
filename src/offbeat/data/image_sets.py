"""The pictures among the real sets: digits, clothes, small photographs, and solids on a grid of cubes."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.dataset import Images
from offbeat.data.formats import read_all, read_idx
from offbeat.data.places import set_folder

DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Bytes = NDArray[np.uint8]
Labelled = tuple[NDArray[Any], NDArray[Any]]


def mnist(data_dir: str | Path | None = None) -> Images:
    return _idx_set("mnist", "MNIST digits", DIGITS, data_dir)


def fashion_mnist(data_dir: str | Path | None = None) -> Images:
    return _idx_set("fashion_mnist", "Fashion-MNIST", CLOTHES, data_dir)


def usps(data_dir: str | Path | None = None) -> Images:
    """16x16 digits, values 0-1; read by h5py, which is imported here alone."""
    import h5py

    with h5py.File(set_folder("usps", data_dir) / "usps.h5", "r") as file:
        train, test = ((file[f"{part}/data"][:], file[f"{part}/target"][:]) for part in ("train", "test"))
    return _images("usps", train, test, (16, 16), DIGITS, "USPS digits (real, 7,291 + 2,007 of 16x16, values 0-1)")


def cifar10_subset(data_dir: str | Path | None = None) -> Images:
    """15,000 + 1,000 photographs of 32x32x3. Stored as differences along rows and columns; this undoes them."""
    folder = set_folder("cifar10_subset", data_dir)
    train, test = (
        (_undifferenced(folder / f"{part}_images.npy.xz"), np.load(folder / f"{part}_labels.npy", allow_pickle=False))
        for part in ("train15000", "test1000")
    )
    source = "CIFAR-10 subset (real, 15,000 + 1,000 of 32x32x3, values 0-1)"
    return _images("cifar10_subset", train, test, (32, 32, 3), CIFAR, source)


def _idx_set(name: str, title: str, classes: tuple[str, ...], data_dir: str | Path | None) -> Images:
    folder = set_folder(name, data_dir)
    train, test = (
        (read_idx(folder / f"{part}-images-idx3-ubyte.gz"), read_idx(folder / f"{part}-labels-idx1-ubyte.gz"))
        for part in ("train", "t10k")
    )
    return _images(name, train, test, (28, 28), classes, f"{title} (real, 60,000 + 10,000 of 28x28, values 0-1)")


def _images(
    name: str, train: Labelled, test: Labelled, shape: tuple[int, ...], classes: tuple[str, ...], source: str
) -> Images:
    """Bytes become numbers from 0 to 1."""
    (x_train, y_train), (x_test, y_test) = (
        (x.reshape(len(x), -1).astype(np.float32) / np.float32(255 if x.dtype == np.uint8 else 1), y.astype(np.int64))
        for x, y in (train, test)
    )
    return Images(name, x_train, y_train, x_test, y_test, shape, classes, source)


def _undifferenced(file: Path) -> Bytes:
    stored = np.load(io.BytesIO(read_all(file)), allow_pickle=False)
    planes = np.cumsum(np.cumsum(stored, 2, dtype=np.uint8), 3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.asarray(planes.transpose(1, 2, 3, 0))


# -- solids --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solids:
    """Objects as 30x30x30 grids of 0/1; `views` turns them into twelve pictures each."""

    name: str
    x_train: Bytes = field(repr=False)
    y_train: NDArray[np.int64] = field(repr=False)
    x_test: Bytes = field(repr=False)
    y_test: NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...]
    source: str


def modelnet10_voxel(data_dir: str | Path | None = None) -> Solids:
    """3,991 + 908 objects of ten classes."""
    file = set_folder("modelnet10_voxel", data_dir) / "modelnet10_voxel30.npz"
    with np.load(file, allow_pickle=False) as archive:
        return Solids(
            name="modelnet10_voxel",
            x_train=_grids(archive["X_train"]),
            y_train=archive["y_train"].astype(np.int64),
            x_test=_grids(archive["X_test"]),
            y_test=archive["y_test"].astype(np.int64),
            classes=tuple(str(name) for name in archive["class_names"]),
            source="ModelNet10 as 30x30x30 grids (real, 3,991 + 908 objects)",
        )


def _grids(bits: Bytes) -> Bytes:
    return np.unpackbits(bits, axis=1)[:, :27_000].reshape(-1, 30, 30, 30)


def views(grids: Bytes) -> NDArray[np.float32]:
    """Twelve pictures of every object, (n, 12, 30, 30), values 0-1, as depth cameras would see it.

    Along each of the three axes: the nearest surface seen from one end and from the other (bright is near, 0 is
    nothing), the thickness of the whole, and the thickness of its middle third.
    Client k of four takes views 3k to 3k+2.
    """
    return np.concatenate([_views_along(grids, axis) for axis in (1, 2, 3)], axis=1)


def _views_along(grids: Bytes, axis: int) -> NDArray[np.float32]:
    depth = grids.shape[axis]
    turned = np.moveaxis(grids, axis, 1)
    pictures = np.empty((grids.shape[0], 4, *turned.shape[2:]), dtype=np.float32)
    pictures[:, 0] = _nearest_surface(turned)
    pictures[:, 1] = _nearest_surface(turned[:, ::-1])
    pictures[:, 2] = turned.sum(axis=1, dtype=np.float32) / depth
    third = depth // 3
    pictures[:, 3] = turned[:, third : depth - third].sum(axis=1, dtype=np.float32) / (depth - 2 * third)
    return pictures


def _nearest_surface(turned: Bytes) -> NDArray[np.float32]:
    depth = turned.shape[1]
    near = (depth - turned.argmax(axis=1)).astype(np.float32) / np.float32(depth)
    return np.where(turned.any(axis=1), near, np.float32(0))
