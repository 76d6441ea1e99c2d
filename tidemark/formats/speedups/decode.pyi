from tidemark.formats.message import Message
from tidemark.formats.record_layout import Buffer

def decode_messages(raw: Buffer, broker_group: str | None = None) -> list[Message]: ...
