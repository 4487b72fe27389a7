"""Published data with natural users: small files of each format; the real ones where they are."""

import os
import shutil
import sys
import zipfile

import numpy as np
import pytest
from scipy.io import savemat, wavfile

from corsage.benchmarks import published
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError, DataError
from corsage.datasets.data_set import load_table, source_files
from corsage.datasets.natural import sources
from tests.support.federations import federate
from tests.support.published import NATURAL, watch_recordings, write_addresses

WATCHED = ("watch", *NATURAL)
REAL = os.environ.get("CORSAGE_DATA", "")
"""A folder of the publishers' files; what is in a package is read from there."""


def keys(name, folder="", **more):
    return Config.parse({"dataset": name, "data-dir": str(folder), **more}).data


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """The package of the watch, with few recordings."""
    place = tmp_path / "site" / "seglearn"
    (place / "data").mkdir(parents=True)
    (place / "data" / "watch_dataset.npy").write_bytes(b"")
    (place / "__init__.py").write_text("")
    line = "from tests.support.published import watch_recordings as load_watch"
    (place / "datasets.py").write_text(line)
    for name in ("seglearn", "seglearn.datasets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(place.parent)
    yield
    for name in ("seglearn", "seglearn.datasets"):
        sys.modules.pop(name, None)


def made(name, folder, request, **more):
    """The table of a small file."""
    if name == "watch":
        request.getfixturevalue("watched")
        return load_table(keys(name, **more))
    NATURAL[name](folder)
    return load_table(keys(name, folder, **more))


def sizes(table):
    users, counts = np.unique(table.users, return_counts=True)
    return dict(zip(users.tolist(), counts.tolist(), strict=True))


def test_school(tmp_path, request):
    table = made("school", tmp_path, request)
    assert sizes(table) == {"0": 5, "1": 9, "2": 7} and table.x.shape == (21, 28)
    assert table.y[5:8].tolist() == [10, 11, 12] and table.x[5:14].max() == 3


def test_heart(tmp_path, request):
    """One row of each hospital has a gap that counts; ca and thal do not."""
    table = made("heart", tmp_path, request)
    assert sizes(table) == {"cleveland": 8, "hungarian": 9, "switzerland": 10, "va": 11}
    assert table.y.tolist()[:8] == [0, 1, 1, 1, 1, 0, 1, 1] and table.num_classes == 2
    columns = {column.name: column.levels for column in table.facts.columns}
    assert columns["cp"] == ("1", "2", "3", "4") and columns["restecg"] == ("0", "1", "2")
    assert len(columns) == 10 and "thal" not in columns
    marked = tmp_path / "processed.va.data"  # an editor's byte-order mark is no age
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    assert np.array_equal(load_table(keys("heart", tmp_path)).x, table.x)


def test_air_is_a_day_ahead(tmp_path, request):
    """35 of 60 hours have a label; those of which a cell is missing are left out by `refuse`."""
    table = made("beijing-air", tmp_path, request)
    names = table.facts.names
    known = ~np.isnan(table.x[:, 0])
    assert np.array_equal(table.y[known] - 24, table.x[known, 0])
    assert sizes(table) == {"Aotizhongxin": 35, "Changping": 35}
    assert np.isnan(table.x[:, names.index("wd")]).sum() == 2
    refused = load_table(keys("beijing-air", tmp_path, missing="refuse"))
    assert not np.isnan(refused.x).any() and len(refused.x) == 70 - 2 - 2


def test_flights_of_planes_with_thirty(tmp_path, request):
    table = made("flights", tmp_path, request)
    assert sizes(table) == {"N1": 30} and table.y.tolist()[:3] == [-20, -18, -16]
    weekday = table.x[:, table.facts.names.index("weekday")]
    assert weekday[0] == 1  # 1 January 2013 was a Tuesday
    assert set(table.x[:, table.facts.names.index("arrival hour")]) == {18}


def test_voters(tmp_path, request):
    table = made("tv16", tmp_path, request)
    assert (
        len(table.y) == 38 and table.x.shape[1] == 11 and set(sizes(table)) == {"Ohio", "New York"}
    )
    assert table.facts.columns[3].levels == ("Black", "White")


def test_ratings(tmp_path, request):
    """Films come first: without the last film, which 18 rated, users have 20 or fewer."""
    table = made("movielens", tmp_path, request)
    assert set(sizes(table).values()) == {20} and len(sizes(table)) == 20
    assert np.array_equal(np.unique(table.x), np.arange(20)) and table.y.min() >= 1


def test_the_watch(tmp_path, request):
    table = made("watch", tmp_path, request)
    assert sizes(table) == {"1": 2 + 3 + 5, "2": 3 + 6 + 2} and table.x.shape == (21, 6, 1, 100)
    series = watch_recordings()["X"][1]
    assert np.allclose(table.x[3, :, 0], series[100:200].T)
    assert table.y.tolist()[:6] == [0, 0, 1, 1, 1, 2]


def test_spoken_digits(tmp_path, request):
    """Each spectrum is standardised by itself, and the band of the tone rises with the digit."""
    table = made("spoken-digits", tmp_path, request)
    assert sizes(table) == {"george": 30, "theo": 30} and table.x.shape == (60, 32, 1, 32)
    assert np.allclose(table.x.mean((1, 2, 3)), 0, atol=1e-5)
    assert np.allclose(table.x.std((1, 2, 3)), 1, atol=1e-4)
    bands = [table.x[table.y == d].mean((0, 2, 3)).argmax() for d in range(1, 10)]
    assert all(np.diff(bands) > 0)


def test_letters(tmp_path, request):
    table = made("sotu", tmp_path, request)
    assert set(sizes(table)) == {"george_washington", "john_adams"}
    text = ("Fellow-Citizens of the Senate: " * 60)[:21]
    assert "".join(chr(c + 31) for c in [*table.x[0], table.y[0]]) == text
    assert (table.vectors == np.eye(96)).all() and 0 in table.x  # the dash
    loose = tmp_path / "loose"
    loose.mkdir()
    write_addresses(loose, packed=False)
    assert np.array_equal(load_table(keys("sotu", loose)).x, table.x)


@pytest.mark.parametrize("name", WATCHED)
def test_a_run_with_the_model_that_suits_it(name, tmp_path, request):
    table = made(name, tmp_path, request)
    more = {} if name == "watch" else {"data-dir": str(tmp_path)}
    suited = Config.parse({"dataset": name}).model
    more |= {"model": suited.model, "hidden": suited.hidden, "cache-dir": str(tmp_path / "c")}
    _, result, _ = federate("fedrep", dataset=name, num_users=0, num_rounds=1, **more)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert result["fedrep"].per_user.keys() == {*map(str, sizes(table))}


@pytest.mark.parametrize("name", WATCHED)
def test_files_that_are_not_there(name, tmp_path):
    with pytest.raises(
        DataError, match=rf"dataset={name}: expected .*\. .*(pip|npm|data-dir)"
    ) as error:
        source_files(keys(name, tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", NATURAL)
def test_damaged_files(name, tmp_path):
    """Cut in the middle: one line, never a traceback; a text may be whole up to there."""
    NATURAL[name](tmp_path)
    for path in source_files(keys(name, tmp_path)):
        raw = path.read_bytes()
        path.write_bytes(raw[: len(raw) // 2] + b'"\xff')
    with pytest.raises(CorsageError, match=f"dataset={name}.*damaged") as error:
        load_table(keys(name, tmp_path))
    assert "\n" not in str(error.value)


COUNTS = {
    "school": (139, 15_362, (28,)),
    "heart": (4, 740, (10,)),
    "beijing-air": (12, 411_741, (14,)),
    "flights": (2_724, 310_579, (8,)),
    "tv16": (51, 37_813, (11,)),
    "movielens": (625, 68_391, (1,)),
    "watch": (10, 2_369, (6, 1, 100)),
    "spoken-digits": (6, 3_000, (32, 1, 32)),
    "sotu": (43, 27_001, (20,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_real_ones(name):
    packaged = name in ("flights", "tv16", "movielens", "watch")
    folder = "" if packaged else REAL
    try:
        table = load_table(keys(name, folder))
    except DataError as error:
        if ": expected " not in str(error):  # it is there, and is not read
            raise
        pytest.skip(str(error))
    assert (len(sizes(table)), len(table.y), table.x.shape[1:]) == COUNTS[name]


def test_published_rows_have_the_splits_and_the_units_of_their_publishers(tmp_path, capsys):
    """FLamby's hospitals are scaled by their own patients, the schools' marks are 0 to 1."""
    for name in ("heart", "school"):
        NATURAL[name](tmp_path)
    for i, (x, y, x_test, y_test) in enumerate(published.hospitals(str(tmp_path)).values()):
        rows = 8 + i
        assert (len(y), len(y_test)) == (int(0.66 * rows), rows - int(0.66 * rows))
        assert x.shape[1:] == x_test.shape[1:] == (13,)
        spread = x.astype(float).std(0, ddof=1)
        assert np.abs(x.mean(0)).max() < 1e-6 and np.isclose(spread, np.rint(spread)).all()
        assert spread.max() == pytest.approx(1)
    for i, (x, y, x_test, y_test) in enumerate(published.schools(str(tmp_path), 100).values()):
        marks = np.concatenate([y, y_test]) * 69 + 1
        assert np.allclose(np.sort(marks), np.arange(len(marks)) + 10 * i)
        assert len(x_test) == -(-len(marks) // 5) and x.dtype == float
    published.beside(iter([("row", [0.5, 0.7], [0.6, 0.8])]))
    assert "0.6000 ± 0.1414" in (shown := capsys.readouterr().out) and "-0.7" in shown


def broken(name, folder, break_file):
    """The line on a small file in which something is not as it should be."""
    NATURAL[name](folder)
    break_file(folder)
    with pytest.raises(DataError) as error:
        load_table(keys(name, folder))
    return str(error.value)


def test_an_air_without_an_hour_is_a_day_ahead_all_the_same(tmp_path, request):
    """Labels go by the clock, whatever hours are missing or in whatever order they stand."""
    whole = made("beijing-air", tmp_path, request)
    (path,) = tmp_path.glob("PRSA*.zip")
    with zipfile.ZipFile(path) as archive:
        texts = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, (head, *rows) in texts.items():
            archive.writestr(name, "\n".join([head, *rows[:30], *rows[:31:-1]]))
    gone = load_table(keys("beijing-air", tmp_path))
    known = ~np.isnan(gone.x[:, 0])
    assert 0 < len(gone.x) < len(whole.x)
    assert np.array_equal(gone.y[known] - 24, gone.x[known, 0])


def test_archives_are_read_with_a_bound_and_once(tmp_path, monkeypatch):
    """Two downloads of one archive would put the same samples into training and test."""
    line = broken(
        "beijing-air",
        tmp_path,
        lambda at: shutil.copy(next(at.glob("PRSA*.zip")), at / "PRSA (1).zip"),
    )
    assert "leave one of them" in line
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    (tmp_path / "PRSA (1).zip").unlink()
    with pytest.raises(DataError, match="more than"):
        load_table(keys("beijing-air", tmp_path))


def test_what_is_not_as_the_publisher_has_it_is_refused_in_a_line(tmp_path):
    """Reading library's own errors, pupils without a mark, digits that are none, gaps, nothing."""
    for name in ("school", "spoken-digits", "movielens", "sotu"):
        (tmp_path / name).mkdir()
    empty = broken("school", tmp_path / "school", lambda at: (at / "school.mat").write_bytes(b""))
    assert "MatReadError" in empty
    x, y = np.empty((2, 2), object)
    x[:], y[:] = [np.ones((4, 3)), np.ones((5, 3))], [np.ones((5, 1)), np.ones((4, 1))]
    savemat(tmp_path / "school" / "school.mat", {"X": x[None], "Y": y[None]})
    with pytest.raises(DataError, match="not of the same pupils"):
        load_table(keys("school", tmp_path / "school"))
    films = tmp_path / "movielens" / "ratings.csv"
    films.write_text("userId,movieId,rating\n1,2,NA\n")
    with pytest.raises(DataError, match="with a gap"):
        load_table(keys("movielens", tmp_path / "movielens"))
    films.write_text("userId,movieId,rating\n1,2,3\n")
    with pytest.raises(DataError, match="nobody has enough"):
        load_table(keys("movielens", tmp_path / "movielens"))
    (tmp_path / "spoken-digits" / "recordings").mkdir()
    recording = tmp_path / "spoken-digits" / "recordings" / "12_a_0.wav"
    wavfile.write(recording, 8000, np.ones(400, np.int16))
    with pytest.raises(DataError, match="12 is no digit"):
        load_table(keys("spoken-digits", tmp_path / "spoken-digits"))
