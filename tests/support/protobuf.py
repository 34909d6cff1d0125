"""Messages of protobuf read back: shares nothing with the writer."""


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of every field of a message, in order."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 1:
            value, at = data[at : at + 8], at + 8
        else:
            assert kind == 2, key
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length, "cut off"
        yield key >> 3, value


def one(data):
    return dict(fields(data))
