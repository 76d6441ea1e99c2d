from tidemark.formats.batch_parts import Part

def split(entries: bytes, *, body_size_max: int, properties_size_max: int) -> list[Part]: ...
def read_batch(
    entries: bytes,
    *,
    message_size_max: int,
    message_properties_size_max: int,
    body_size_max: int,
    properties_size_max: int,
) -> Part | None: ...
