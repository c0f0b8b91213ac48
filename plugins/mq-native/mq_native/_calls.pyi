Step = tuple[str, bytes, bytes, bytes] | tuple[str, str] | tuple[str]

def do_steps(steps: list[Step], keep: bool, /) -> list[int]:
    """Do steps in order: write a new file `(path, data, sum, attributes)`, move one `(path, target)` where nothing
    has the target's name, unlink one `(path,)`. A number for each: -errno, and nothing of it done; else 0, or where
    `keep` is true the open file that was written.

    Raises:
        ValueError: a path has a NUL in it, or cannot be written as UTF-8. Nothing was done.
    """

def read_files(paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
    """Read files of at most `largest` bytes: the bytes, the sum and the attributes (empty for none) of each; or the
    errno, EFBIG for a larger one or what is no plain file, ENODATA for one without a sum.

    Raises:
        ValueError: a path has a NUL in it, or cannot be written as UTF-8.
    """
