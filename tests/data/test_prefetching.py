"""Items that a thread makes ahead."""

import threading
from contextlib import closing

import pytest

from ramen_ray.long_work import prefetched

PATIENCE_S = 900.0


def _threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetched")]


def test_the_next_item_is_made_meanwhile_and_no_other():
    begun = [threading.Event() for _ in range(4)]

    def items():
        for number, event in enumerate(begun):
            event.set()
            yield number

    with closing(prefetched(items())) as ahead:
        assert next(ahead) == 0
        assert begun[1].wait(PATIENCE_S)
        assert next(ahead) == 1
        assert begun[2].wait(PATIENCE_S)
        assert not begun[3].is_set()
    assert not begun[3].is_set()
    assert not _threads()


def test_items_come_in_order_from_another_thread_and_its_error_in_the_place_of_its_item():
    makers = set()

    def items():
        for number in (1, 2):
            makers.add(threading.current_thread())
            yield number
        raise ValueError("the third")

    ahead = prefetched(items())
    found = []
    with pytest.raises(ValueError, match="the third"):
        for item in ahead:
            found.append(item)
    assert found == [1, 2]
    assert len(makers) == 1
    assert threading.current_thread() not in makers
    assert not _threads()
    assert list(prefetched(iter(()))) == []
