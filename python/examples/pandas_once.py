"""A pandas job that many machines start, and one runs: the others get its result."""

import io

import pandas as pd

import tenure

locks = tenure.connect()


def load(day: str) -> pd.DataFrame:
    """The data."""
    return pd.DataFrame({"merchant": ["bakery", "florist", "bakery"], "paid": [3, 5, 4]})


def to_bytes(frame: pd.DataFrame) -> bytes:
    # Up to 256 KiB. If it is larger, write it to a file that all reach, and return the file's name.
    text: str = frame.to_json(orient="table")
    return text.encode()


def to_frame(data: bytes) -> pd.DataFrame:
    return pd.read_json(io.StringIO(data.decode()), orient="table")


@locks.single_flight("report/{day}", fresh=86400, dumps=to_bytes, loads=to_frame)
def report(day: str) -> pd.DataFrame:
    return load(day).groupby("merchant").sum()


if __name__ == "__main__":
    print(report("2026-11-24"))
