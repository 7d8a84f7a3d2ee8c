import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.context import Context, TypeEntry

OIDS = st.integers(0, 2**32 - 1)
CONTEXTS = st.builds(
    Context,
    streamed=st.booleans(),
    commit_lsn=st.integers(0, 2**64 - 1),
    committed_at=st.integers(-(2**63), 2**63 - 1),
    xid=OIDS,
    ordinal=st.integers(0, 2**31 - 1),
    relations=st.lists(st.binary()).map(tuple),
    types=st.dictionaries(
        OIDS, st.builds(TypeEntry, kind=st.sampled_from("daecrmb"), name=st.text("ab"), inner=OIDS)
    ),
    keys=st.dictionaries(OIDS, st.lists(st.text("ab")).map(tuple)),
)


@pytest.mark.slow
@given(context=CONTEXTS)
def test_a_context_crosses_as_it_was(context: Context) -> None:
    assert Context.unpack(context.pack()) == context


@given(context=CONTEXTS, cut=st.integers(0, 10**6))
def test_any_prefix_of_a_context_is_malformed(context: Context, cut: int) -> None:
    packed = context.pack()
    with pytest.raises(Malformed):
        Context.unpack(packed[: cut % len(packed)])


@pytest.mark.parametrize("document", [None, 1, [], {}, {"relations": 1}, {"unknown": 1}])
def test_another_document_is_malformed(document: object) -> None:
    with pytest.raises(Malformed, match="not one of pgoutput"):
        Context.unpack(ormsgpack.packb(document))
