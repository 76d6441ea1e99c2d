"""The error of a broken rule."""


class Violation(SystemExit):
    """A rule of the simulation is broken; the message says which.

    Neither the product's code nor asyncio catches an exception of this kind.
    """
