"""Single cases, each a function that raises `Wrong`."""


def selected(names):
    """The cases whose names begin with one of `names`; all without any."""
    return [(name, case) for name, case in ALL.items() if not names or any(name.startswith(n) for n in names)]


ALL = {}
