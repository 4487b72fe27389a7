"""What is remembered of many users: like dictionaries and sets, and as arrays and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.strategies.rounds.ledger import Crowd, Ledger

USERS = st.text("abc7 é\n", max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "del", "copy", "back"]), st.lists(USERS, max_size=4))
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_a_ledger_is_a_dictionary(steps: list[tuple[str, list[str]]]) -> None:
    """Whatever is done to it; a copy stays what it was, though it shares the users' places."""
    own, known = Ledger(), dict[str, int]()
    kept: list[tuple[Ledger, dict[str, int]]] = []
    for number, (what, users) in enumerate(steps):
        if what == "put":
            own.put(users, number)
            known.update(dict.fromkeys(users, number))
        elif what == "del":
            for user in known.keys() & set(users):
                del own[user], known[user]
        elif what == "copy":
            kept.append((own.copy(), dict(known)))
        else:
            own = Ledger.of("v", own.arrays("v"))
        assert own == known and len(own) == len(known) and bool(own) == bool(known)
        assert all(own.get(user, 0) == known.get(user, 0) for user in users)
        assert all(copy == then for copy, then in kept)


def test_many_users_have_room() -> None:
    users = [str(i) for i in range(1000)]
    own = Ledger()
    own.put(users, 3)
    assert own == dict.fromkeys(users, 3)


@pytest.mark.parametrize("wrong", [{"v.numbers": [1]}, {"v.numbers": [1, -4]}, {}])
def test_arrays_that_are_none_of_its_own_are_refused(wrong: dict[str, Any]) -> None:
    import numpy as np

    arrays = Ledger({"a": 1, "b": 2}).arrays("v")
    if wrong:
        changed = {name: np.array(value) for name, value in wrong.items()}
        with pytest.raises(ValueError, match="v: "):
            Ledger.of("v", {**arrays, **changed})
    twice = {**arrays, "v.users": np.frombuffer(b'["a", "a"]', np.uint8)}
    with pytest.raises(ValueError, match="twice"):
        Ledger.of("v", twice)


@given(st.lists(USERS), st.lists(USERS))
def test_a_crowd_is_a_set(one: list[str], more: list[str]) -> None:
    crowd = Crowd(one)
    crowd.update(more)
    assert crowd == {*one, *more} and len(crowd) == len({*one, *more})
    assert Crowd.of("v", crowd.arrays("v")) == crowd
    for user in more:
        crowd.discard(user)
    assert crowd == set(one) - set(more)
