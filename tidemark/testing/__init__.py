"""For tests of programs that use Tidemark: a real node, made of real processes.

    # conftest.py
    pytest_plugins = ["tidemark.testing.fixtures"]

    # test_orders.py
    async def test_an_order_is_sent(tidemark_node):
        async with tidemark.connect(tidemark_node.url) as mq:
            ...

``node.LocalNode`` is the node without pytest.
"""

from tidemark.testing.node import LocalNode, NodeFailed

__all__ = ["LocalNode", "NodeFailed"]
