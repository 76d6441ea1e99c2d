from tidemark.formats.produce_wire import PlainRequest

def read_plain(
    body: bytes,
    *,
    message_size_max: int,
    properties_size_max: int,
    messages_max: int,
    timeout_ms_max: int,
    makes_ids: bool,
    id_head: bytes,
    id_ms: int,
    id_count: int,
) -> PlainRequest | None: ...
def pack_answer(
    entries: bytes,
    sizes: bytes,
    *,
    level: str,
    copies: int,
    host: bytes,
    queue: int,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    batch_id: str | None,
) -> bytes: ...
