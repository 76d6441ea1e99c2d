from __future__ import annotations

from itertools import product

from tidemark.client.failures import AfterFailure, after_failure


def test_every_combination_has_its_answer() -> None:
    for order, broadcast, failures, retry_max in product(
        (False, True), (False, True), (1, 2, 16, 17), (0, 1, 16)
    ):
        verdict = after_failure(
            order=order, broadcast=broadcast, failures=failures, retry_max=retry_max
        )
        if broadcast:
            assert verdict is AfterFailure.LEAVE
        elif not order:
            assert verdict is AfterFailure.SEND_BACK
        elif failures <= retry_max:
            assert verdict is AfterFailure.AGAIN
        else:
            assert verdict is AfterFailure.DEAD
