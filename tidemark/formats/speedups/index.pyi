def put_rows(
    view: memoryview, slots: int, entries: int, rows: bytes | memoryview, first: int
) -> int: ...
def look_up(
    view: memoryview,
    slots: int,
    entries: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    hits_max: int,
    first: int,
    entries_max: int,
) -> tuple[list[int], int, int]: ...
def held_rows(
    view: memoryview, slots: int, entries: int, rows: bytes | memoryview, first: int, end: int
) -> int: ...
def chains_are_sound(view: memoryview, slots: int, entries: int, first: int) -> bool: ...
