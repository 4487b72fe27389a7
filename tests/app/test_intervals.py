"""Prediction intervals of rows: closed forms, coverage, and one line where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from corsage import fit, simulate
from corsage.app import command
from corsage.app.simulation import Comparison
from corsage.core.errors import CorsageError

LEVEL = 0.95


def fitted(x: Any, y: Any, user: Any, **more: Any) -> Comparison:
    keys: dict[str, Any] = {"strategy": "mixed-model", "progress": False, **more}
    return fit(x=x, y=y, user=user, test_fraction=0, mixed_intervals="never", **keys)


def drawn(rng: Any, users: int, rows: int) -> tuple[Any, Any, Any, Any]:
    """Users with levels and slopes of their own: inputs, labels, users, and the truth of each."""
    theta = np.array([2.0, 1.0]) + rng.normal(size=(users, 2)) * [0.7, 1.0]
    who = np.repeat(np.arange(users), rows)
    x = rng.normal(size=len(who))
    y = x * theta[who, 0] + theta[who, 1] + rng.normal(0, 0.8, len(who))
    return x[:, None], y, who, theta


def test_random_intercepts_have_the_closed_form() -> None:
    """Balanced: tau^2 and sigma^2 from the two mean squares; all errors follow from them."""
    rng = np.random.default_rng(1)
    m, n = 12, 6
    who = np.repeat(np.arange(m), n)
    y = 5 + rng.normal(0, 2, m)[who] + rng.normal(0, 1, m * n)
    x = np.zeros((m * n, 1))
    x[:, 0] = np.tile(np.linspace(-1, 1, n), m)  # tells nothing of levels: it is balanced
    found = fitted(x, y, who, mixed_random="intercept", scale="none")["mixed-model"]
    means, own = y.reshape(m, n).mean(1), y.reshape(m, n)
    slope = (x[:, 0] * (y - means[who])).sum() / np.square(x).sum()
    rest = own - means[:, None] - slope * x[:n, 0]
    noise = np.square(rest).sum() / (m * n - m - 1)
    tau = means.var(ddof=1) - noise / n
    kept = tau / (tau + noise / n)
    sure = noise / np.square(x).sum()
    known = tau * (1 - kept) + (1 - kept) ** 2 * (tau + noise / n) / m
    at = 0.4
    wide = student.ppf((1 + LEVEL) / 2, m * n - m - 2 + 1)
    said = found.user("3").predict([[at]], interval=LEVEL)[0]
    assert said[0] == pytest.approx(y.mean() + kept * (means[3] - y.mean()) + slope * at, rel=1e-6)
    reach = wide * np.sqrt(noise + known + at**2 * sure)
    assert said[2] - said[0] == pytest.approx(reach, rel=1e-5)
    new = found.new_user().predict([[at]], interval=LEVEL)[0]
    further = tau + (tau + noise / n) / m + at**2 * sure
    free = (noise + further) ** 2 / (noise**2 / (m * n - m - 1) + further**2 / (m - 2))
    wide = student.ppf((1 + LEVEL) / 2, free)
    assert new[2] - new[0] == pytest.approx(wide * np.sqrt(noise + further), rel=1e-5)


def test_intervals_cover_what_they_say() -> None:
    """Of new rows of users that were fitted, and of users who were not, 95% lie in them."""
    rng, known, new = np.random.default_rng(7), [], []
    for _ in range(60):
        x, y, who, theta = drawn(rng, 16, 7)
        row = fitted(x, y, who, mixed_variances="full")["mixed-model"]
        for user in range(16):
            at = rng.normal(size=(2, 1))
            label = at @ theta[user, :1] + theta[user, 1] + rng.normal(0, 0.8, 2)
            said = row.user(user).predict(at, interval=LEVEL)
            known += ((said[:, 1] < label) & (label < said[:, 2])).tolist()
        at, label, _, _ = drawn(rng, 30, 1)
        said = row.new_user().predict(at, interval=LEVEL)
        new += ((said[:, 1] < label) & (label < said[:, 2])).tolist()
    assert 0.93 <= np.mean(known) <= 0.97
    assert 0.93 <= np.mean(new) <= 0.97


def test_where_there_is_no_noise_a_line_says_why() -> None:
    rng = np.random.default_rng(2)
    x, y, who, _ = drawn(rng, 6, 12)
    classes = fitted(x, (y > 0).astype(int), who, loss="logistic", model="linear")
    with pytest.raises(CorsageError, match="classes have no sigma"):
        classes.user(1).predict(x[:2], interval=LEVEL)
    network = simulate("fedavg", x=x, y=y, user=who, num_rounds=1, progress=False)
    with pytest.raises(CorsageError, match=r"fedavg: .* it has no sigma"):
        network["fedavg"].user(1).predict(x[:2], interval=LEVEL)
    with pytest.raises(CorsageError, match="a share between 0 and 1"):
        fitted(x, y, who).user(1).predict(x[:2], interval=95)
    alone = fitted(x, y, who, strategy="exact-local")["exact-local"]
    with pytest.raises(CorsageError, match="users share nothing"):
        alone.new_user().predict(x[:2], interval=LEVEL)


def test_the_command_writes_the_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y, who, _ = drawn(np.random.default_rng(4), 5, 8)
    lines = [f"{a},{b},{c}" for a, b, c in zip(x[:, 0], y, who, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y,user", *lines]))
    (tmp_path / "new.csv").write_text("x,user\n0.5,3\n\n ,\n0.5,stranger\n")
    assert command.run(["fit", f"{tmp_path}/t.csv", "label=y", f"run-dir={tmp_path}/runs"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    words = [str(folder), f"{tmp_path}/new.csv", "--interval"]
    assert command.run(["predict", *words, "--new-users"]) == 0
    said = capsys.readouterr()
    assert f"{tmp_path}/new.csv: 2 blank rows left out" in said.err
    head, *rows = said.out.splitlines()
    assert head == "x,user,prediction,low,high"
    ends = [list(map(float, row.split(",")[2:])) for row in rows]
    assert all(low < value < high for value, low, high in ends)
    assert ends[1][2] - ends[1][1] > ends[0][2] - ends[0][1]
