"""What a fuzz does to bytes, to data and to texts, all of it drawn from one seeded generator."""

import copy
import json

ODD = [
    *(None, True, False, 0, -1, 2**31, 2**63, 10**400, -(10**400), 1.5, -0.0, 1e308, 5e-324),
    *("", "x", "\x1b[31mred", "=1+1", "<!--<script>", "../../etc", "a" * 5000, "9" * 5000, "é\0"),
    *([], {}, [1], {"a": 1}, [[[]]], "NaN", "(FP16, 128)"),
]
RAW = ["NaN", "Infinity", "1e999", "9" * 5000, "[" * 5000, '"\\ud800"', "", "{"]  # inside JSON


def damaged_bytes(draw, data):
    """The bytes with something flipped, cut, doubled, moved or written over."""
    kind = draw.randrange(6)
    at = draw.randrange(len(data) + 1)
    size = draw.choice((1, 2, 16, 300))
    if kind == 0 and data:
        bit = draw.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << (bit % 8)
        return bytes(changed)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at + size :]
    if kind == 3:
        return data[:at] + draw.randbytes(size) + data[at + size :]
    if kind == 4:
        return data[:at] + data[at : at + size] + data[at:]
    return draw.randbytes(draw.choice((0, 1, 100, 5000)))


def damaged_data(draw, data):
    """JSON data as text, with one to three of its values replaced, dropped or spelt odd."""
    changed = copy.deepcopy(data)
    marks = {}
    for number in range(draw.randint(1, 3)):
        holder, key = draw.choice(list(places(changed)))
        kind = draw.randrange(5)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1:
            mark = f"@@{number}@@"
            marks[mark] = draw.choice(RAW)
            holder[key] = mark
        elif kind == 2 and isinstance(holder, dict):
            holder[draw.choice(("new", "schema", "gate", "scale"))] = draw.choice(ODD)
        else:
            holder[key] = copy.deepcopy(draw.choice(ODD))
        if not list(places(changed)):
            break
    text = json.dumps(changed)
    for mark, raw in marks.items():
        text = text.replace(f'"{mark}"', raw)
    return text


def places(data):
    """Every value in nested data, as what holds it and under which key."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)
