from __future__ import annotations

from tidemark.client.unique_ids import UniqueIds


def test_ids_made_together_go_on_after_those_made_alone() -> None:
    ids = UniqueIds()
    made = [ids.make(), *ids.make_all(3), ids.make()]
    assert {len(each) for each in made} == {32}
    assert {each[:20] for each in made} == {made[0][:20]}
    assert [int(each[20:], 16) for each in made] == [1, 2, 3, 4, 5]
