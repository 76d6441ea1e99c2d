"""The byte of the append lock, which ha holds while its node is a slave."""

from __future__ import annotations

from pathlib import Path

from services.ha.shell.lock_bytes import wait_for_byte
from shared.files.os_disk import OsDisk
from shared.files.store_dir import LockByte, StoreConfig, StoreDir
from tidemark.formats.filenames import RUNNING_SIGN


# A RocketMQ broker that was started on a slave's store removed index files before it found it
# locked.
def test_the_append_lock_of_a_slave_keeps_rocketmq_out_of_its_store(tmp_path: Path) -> None:
    directory = StoreDir(OsDisk(), tmp_path / "store", StoreConfig())
    directory.open_or_create()
    sign = directory.commit_log_dir / RUNNING_SIGN
    for role in (LockByte.BROKER, LockByte.APPEND):
        lock = wait_for_byte(directory, role, lambda: False)
        assert sign.exists() is (role is LockByte.APPEND)
        lock.release()
        assert not sign.is_symlink()
