"""Series of people: movements of ten arms by a watch, digits said by six speakers.

watch          2,369 windows of two seconds of six channels (acceleration in g, rotation in rad/s)
               of ten people at seven exercises of the shoulder, from the package `seglearn`
spoken-digits  3,000 recordings of the ten digits by six speakers, the Free Spoken Digit Dataset:
               the logarithm of each one's energy in 32 bands of the mel scale at 32 times, spread
               over the whole of it, with mean 0 and deviation 1

Both are (channels, 1, times). Nothing is scaled by other samples.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Bools, Floats, Floats32, Ints
from corsage.core.errors import DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.natural.sources import Source, contents, readable
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import OwnKeys

WATCH = Source(
    (), "`pip install seglearn`, and leave data-dir empty", "seglearn", "data/watch_dataset.npy"
)
WATCH_WINDOW, WATCH_CHANNELS, NOT_LATE = 100, 6, 0.7
"""Samples of a window, at 50 a second; channels; the part of a recording that is not its end."""


class Windows(NamedTuple):
    """The windows of all recordings, one after the other.

    Parameters
    ----------
    x : (windows, samples, channels).
    late : whether it is of the last three tenths of its recording.
    """

    x: Floats32
    y: Ints
    users: Array
    late: Bools


def windows() -> Windows:
    """The watch's recordings cut into windows; a rest is left out."""
    data = importlib.import_module("seglearn.datasets").load_watch()
    x, counts, late = [], [], []
    for series in data["X"]:
        count = len(series) // WATCH_WINDOW
        cut = np.asarray(series[: count * WATCH_WINDOW, :WATCH_CHANNELS], np.float32)
        x.append(cut.reshape(count, WATCH_WINDOW, WATCH_CHANNELS))
        counts.append(count)
        late.append(np.arange(count) >= round(NOT_LATE * count))
    y, users = (np.repeat(np.asarray(data[name]), counts) for name in ("y", "subject"))
    return Windows(
        np.concatenate(x), y.astype(np.int64), users.astype(np.str_), np.concatenate(late)
    )


def watch(keys: OwnKeys) -> Table:
    """The windows as a convolution over time takes them."""
    WATCH.files(keys)
    own = windows()
    x = np.ascontiguousarray(own.x.transpose(0, 2, 1)[:, :, None])
    return Table(x, own.y, own.users, None, int(own.y.max()) + 1, 0.0, 1.0)


SPOKEN = Source(
    ("free-spoken-digit-dataset*.zip", "recordings/*.wav", "*.wav"),
    "Set data-dir=FOLDER that has the folder recordings, or a zip, of "
    "github.com/Jakobovski/free-spoken-digit-dataset",
)
MEL_BANDS, MEL_TIMES, SPAN = 32, 32, 256
"""Bands, times, and samples that are transformed at a time."""


def spoken_digits(keys: OwnKeys) -> Table:
    """DIGIT_SPEAKER_NUMBER.wav, in the order of their names."""
    from scipy.io import wavfile

    x, y, users = [], [], []
    for name, raw in contents(SPOKEN.files(keys), "*_*_*.wav"):
        digit, speaker, _ = name.split("_")
        with warnings.catch_warnings(action="error", category=wavfile.WavFileWarning):
            rate, sound = wavfile.read(io.BytesIO(raw))
        if not re.fullmatch("[0-9]", digit):
            raise DataError(f"dataset=spoken-digits: {name}: {digit} is no digit.")
        if sound.ndim != 1:
            raise DataError(f"dataset=spoken-digits: {name}: more than one channel.")
        x.append(spectrogram(sound.astype(np.float64), rate))
        y.append(int(digit))
        users.append(speaker)
    values = np.stack(x)[:, :, None].astype(np.float32)
    return Table(values, np.array(y), np.array(users), None, 10, 0.0, 1.0)


def spectrogram(sound: Floats, rate: int) -> Floats:
    """Log energies (bands, times), standardised by themselves."""
    sound = np.pad(sound, (0, max(SPAN - len(sound), 0)))
    starts = np.linspace(0, len(sound) - SPAN, MEL_TIMES).astype(np.int64)
    spans = sound[starts[:, None] + np.arange(SPAN)] * np.hanning(SPAN)
    energy = np.abs(np.fft.rfft(spans)) ** 2 @ mel_bands(rate)
    found: Floats = np.log(energy + 1.0).T
    found -= found.mean()
    return found / float(found.std() or 1.0)


@cache
def mel_bands(rate: int) -> Floats:
    """Triangles (frequencies, bands) that are equally wide on the mel scale."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MEL_BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(SPAN, 1 / rate)[:, None]
    low, mid, high = edges[:-2], edges[1:-1], edges[2:]
    found: Floats = np.clip(
        np.minimum((at - low) / (mid - low), (high - at) / (high - mid)), 0, None
    )
    return found


def signals(load: Callable[[OwnKeys], Table], source: Source) -> DataSet[OwnKeys]:
    """A data set for convolutions over time; they learn it in few rounds."""
    prefers = {"model": "cnn1d", "num-rounds": "20"}
    return DataSet(readable(load), OwnKeys, source.files, users="own", prefers=prefers)


DATASET = {"watch": signals(watch, WATCH), "spoken-digits": signals(spoken_digits, SPOKEN)}
