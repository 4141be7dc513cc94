"""Cases whose whole test stands elsewhere already and would be dear to run twice."""

COVERED: dict[str, list[str]] = {}
