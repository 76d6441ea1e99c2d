"""What the simulation raises when something that must hold does not."""


class Violation(SystemExit):
    """The message says what; the runner adds the seed.

    Of a kind that neither the product's code nor asyncio takes for an error of its own.
    """
