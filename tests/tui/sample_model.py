"""Source lines that the recordings of the tests point at; never run."""


def attention(query, key, value):  # type: ignore[no-untyped-def]
    scores = query @ key.T
    weights = scores.softmax(-1)
    return weights @ value


def mlp(x, up, down):  # type: ignore[no-untyped-def]
    return (x @ up).relu() @ down
