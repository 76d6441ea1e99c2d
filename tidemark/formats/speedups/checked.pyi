from tidemark.formats.record import Buffer, Record
from tidemark.formats.record_check import Checks

def read_record(view: Buffer, *, at: int, checks: Checks) -> Record | None: ...
