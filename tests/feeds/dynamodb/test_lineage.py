"""The tree of shards, whatever DescribeStream lists."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.dynamodb.lineage import ShardTree, StreamShard


def draw(text: str) -> ShardTree:
    """A tree from one line: `S0 > S1 S2; S1 > S3; S9`. Shards with children are closed; `!` after a
    name closes one without, and `?` after one leaves it out, as if it were pruned."""
    parents: dict[str, str | None] = {}
    closed: set[str] = set()
    pruned: set[str] = set()

    def add(word: str, parent: str | None) -> None:
        name = word.rstrip("!?")
        closed.update({name} if "!" in word else ())
        pruned.update({name} if "?" in word else ())
        parents[name] = parent or parents.get(name)

    for part in text.split(";"):
        above, _, below = part.partition(">")
        add(above.strip(), None)
        for word in below.split():
            closed.add(above.strip().rstrip("!?"))
            add(word, above.strip().rstrip("!?"))
    return ShardTree(
        StreamShard(id=name, parent=parent, last=1 if name in closed else None)
        for name, parent in parents.items()
        if name not in pruned
    )


def names(shards: list[StreamShard]) -> list[str]:
    return [each.id for each in shards]


def test_leaves_and_open_leaves() -> None:
    tree = draw("S0 > S1 S2; S1 > S3; S4; S5!")
    assert names(tree.leaves) == ["S3", "S2", "S4", "S5"]
    assert names(tree.open_leaves) == ["S3", "S2", "S4"]


def test_a_parent_that_is_not_listed_makes_its_children_roots() -> None:
    tree = draw("S0? > S1 S2; S1 > S3")
    assert names(tree.ordered) == ["S1", "S3", "S2"]


def test_of_a_shard_that_is_listed_twice_the_closed_one_counts() -> None:
    opened, closed = StreamShard(id="S0"), StreamShard(id="S0", last=7)
    for order in ([opened, closed], [closed, opened]):
        tree = ShardTree(order)
        assert names(tree.ordered) == ["S0"]
        assert tree.open_leaves == []


def test_an_empty_answer_is_an_empty_tree() -> None:
    assert ShardTree([]).ordered == []


def test_sequence_numbers_are_integers() -> None:
    numbers = {"StartingSequenceNumber": "7", "EndingSequenceNumber": "100000000000000000000"}
    shard = StreamShard.of({"ShardId": "S0", "SequenceNumberRange": numbers})
    assert shard.last == 10**20
    assert not shard.is_open


@given(st.lists(st.integers(0, 30), max_size=30), st.randoms())
def test_any_order_gives_the_same_tree_with_parents_first(
    parents: list[int], random: Random
) -> None:
    shards = [
        StreamShard(id=f"S{n:02d}", parent=f"S{min(parent, n - 1):02d}" if parent and n else None)
        for n, parent in enumerate(parents)
    ]
    shuffled = [*shards, *shards]
    random.shuffle(shuffled)
    tree = ShardTree(shuffled)
    assert tree.ordered == ShardTree(shards).ordered
    seen: set[str] = set()
    for each in tree.ordered:
        assert each.parent is None or each.parent in seen
        seen.add(each.id)
    assert len(seen) == len(shards)
