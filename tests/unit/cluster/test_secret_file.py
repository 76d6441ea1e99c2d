"""A secret that only permitted users can read, on a machine and in a pod."""

from __future__ import annotations

import pytest

from shared.cluster.secret_file import is_private

POD = 10001


@pytest.mark.parametrize("mode", [0o100600, 0o100400])
@pytest.mark.parametrize("owner", [0, POD])
def test_a_file_for_its_owner_alone_is_private(mode: int, owner: int) -> None:
    assert is_private(mode=mode, owner=owner, group=POD, own_groups={POD})


def test_a_pods_volume_is_private_although_its_group_reads_it() -> None:
    # A kubelet writes it as root, with the pod's fsGroup as its group: nothing else in a pod could
    # read it without running as root.
    assert is_private(mode=0o100440, owner=0, group=POD, own_groups={POD})
    assert is_private(mode=0o100640, owner=0, group=POD, own_groups={0, POD})


@pytest.mark.parametrize(
    ("mode", "owner", "group"),
    [
        (0o100444, 0, POD),  # everyone can read it
        (0o100604, POD, POD),
        (0o100601, POD, POD),
        (0o100640, POD, POD),  # a user's own file: the other members of the group are unknown
        (0o100460, 0, POD),  # the group could replace it
        (0o100450, 0, POD),
        (0o100440, 0, 50),  # a group of others
        (0o100440, 0, 0),  # root's group is no pod's own
    ],
)
def test_what_others_can_read_is_not(mode: int, owner: int, group: int) -> None:
    assert not is_private(mode=mode, owner=owner, group=group, own_groups={0, POD})
