"""Draws a tree of shards from one line."""

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
