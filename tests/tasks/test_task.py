"""What tasks do beside decoding and writing."""

import gc
import weakref

import pytest

from penstock.page import Page
from penstock.position import PartitionId, Place
from penstock.tasks.task import tidied

PLACE = Place("1", 0)
PAGE = Page(
    partition=PartitionId("p"),
    first=PLACE,
    last=PLACE,
    count=1,
    captured_at=0,
    context=b"",
    payload=b"",
)


class Cycle:
    """What only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize(("every", "is_freed"), [(0.0, True), (60.0, False)])
def test_a_long_task_collects_its_garbage_now_and_then(every: float, is_freed: bool) -> None:
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        assert list(tidied([PAGE, PAGE], every)) == [PAGE, PAGE]
        assert (garbage() is None) == is_freed
    finally:
        gc.enable()
