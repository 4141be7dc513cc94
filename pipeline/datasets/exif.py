"""The orientation tag of a photograph, read without Pillow.

Pillow's reader of Exif warns about broken blocks and stumbles over some; for JPEG it runs whenever a
file is opened, wanted or not. So the blocks are taken out of the file before Pillow sees it.

Source: Exif 2.3 (CIPA DC-008-2012), 4.5 and 4.6.4: a TIFF header, then the first directory.
"""

from typing import Literal

_START, _SCAN, _APP1, _APP2 = b"\xff\xd8", 0xDA, 0xE1, 0xE2
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xDA)})


def split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """Return the JPEG file without Exif and multi-picture (MPF) segments, and its Exif block.

    The segments keep their place and length under another name, so no offset changes. What is not
    JPEG comes back as it is, with an empty block.
    """
    exif, changed, at = b"", bytearray(), 2
    while data[:2] == _START and data[at : at + 1] == b"\xff" and at + 4 <= len(data):
        marker = data[at + 1]
        if marker == _SCAN:
            break
        if marker == 0xFF or marker in _NO_LENGTH:
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        name = data[at + 4 : at + 8]
        if (marker, name) in ((_APP1, b"Exif"), (_APP2, b"MPF\0")):
            changed = changed or bytearray(data)
            changed[at + 4 : at + 8] = b"----"
            if marker == _APP1 and not exif:
                exif = data[at + 4 : end]
        at = end
    return bytes(changed) or data, exif


def orientation(block: object) -> int:
    """Return the orientation tag 1..8 of an Exif block; 1 if there is none or it is broken.

    >>> orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\1\\x01\\x12\\0\\3\\0\\0\\0\\1\\0\\6\\0\\0")
    6
    """
    if not isinstance(block, bytes):
        return 1
    block = block.removeprefix(b"Exif\0\0")
    order: Literal["little", "big"] = "little" if block[:2] == b"II" else "big"

    def number(at: int, n: int) -> int:
        return int.from_bytes(block[at : at + n], order)

    if block[:2] not in (b"II", b"MM") or number(2, 2) != 42:
        return 1
    first = number(4, 4)
    for at in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        if at + 12 > len(block):
            break
        if number(at, 2) == 0x0112 and number(at + 2, 2) == 3:
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
