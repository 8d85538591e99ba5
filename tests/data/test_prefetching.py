"""Items that a thread makes ahead."""

import threading
from contextlib import closing

import pytest

from ramen_ray.long_work import prefetched

PATIENCE_S = 900.0


def test_a_thread_makes_the_next_item_alone_and_its_error_comes_in_the_place_of_its_item():
    begun = [threading.Event() for _ in range(4)]
    makers = set()

    def items():
        for number, event in enumerate(begun):
            makers.add(threading.current_thread())
            event.set()
            yield number
        raise ValueError("the last")

    found = []
    with pytest.raises(ValueError, match="the last"):
        for item in prefetched(items()):
            found.append(item)
            assert all(event.wait(PATIENCE_S) for event in begun[: item + 2])
            assert not any(event.is_set() for event in begun[item + 2 :])
    assert found == [0, 1, 2, 3]
    assert len(makers) == 1
    assert threading.current_thread() not in makers
    with closing(prefetched(items())) as left:
        assert next(left) == 0
    assert not [one for one in threading.enumerate() if one.name.startswith("prefetched")]
    assert list(prefetched(iter(()))) == []
