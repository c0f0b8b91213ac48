Step = tuple[str, bytes, bytes, bytes] | tuple[str, str] | tuple[str]

def do_steps(steps: list[Step], keep: bool, /) -> list[int]:
    """Do steps in order: write a new file `(path, data, sum, attributes)`, move one `(path, target)` where nothing
    has the target's name, unlink one `(path,)`. A number for each: -errno, and nothing of it done; else 0, or where
    `keep` is true the open file that was written.

    Raises:
        ValueError: a path has a NUL in it, or cannot be written as UTF-8. Nothing was done.
    """

def do_steps_telling(steps: list[Step], fd: int, every: int, before: int, /) -> list[int]:
    """As :func:`do_steps` without `keep`. After `every` so many steps, as long as none was refused, it writes to the
    pipe `fd` how many are done, `before` more than that, and when that was: an integer of 8 bytes, and the seconds of
    :func:`time.monotonic` as a float of 8, both in this machine's order. It waits while the pipe is full. The last
    step is not told."""

def read_files(paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
    """Read files of at most `largest` bytes: the bytes, the sum and the attributes (empty for none) of each; or the
    errno, EFBIG for a larger one or what is no plain file, ENODATA for one without a sum.

    Raises:
        ValueError: a path has a NUL in it, or cannot be written as UTF-8.
    """

def read_columns(
    folder: str, names: list[bytes | str], base: int, most: int, largest: int, /
) -> tuple[int, bytes, bytes, bytes, bytes, dict[int, bytes]]:
    """Read the messages of these names, one behind another, up to the first that is not whole, that has more than
    `largest` bytes, or with which bodies and attributes would have more than `most`. A name is the 16 bytes of an id's
    key, or a text that begins with an id.

    Returns how many were read; their ids' times, 8 bytes each, and the ends of their bodies, `base` added to each, 4
    bytes each, all with the lowest byte first; their ids, 36 bytes each; their bodies; and the attributes of those that
    have any, by their places.

    Raises:
        ValueError: a name is neither, or has a slash or a NUL in it, or cannot be written as UTF-8.
    """
