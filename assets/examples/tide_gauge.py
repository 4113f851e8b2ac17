"""Reads a tide gauge over a slow radio link and keeps a table of water levels.

The gauge sends a frame of 12 bytes whenever it is asked. Frames arrive late, twice or damaged, so
each one is checked, dated and compared with its neighbours before it enters the table.
"""

import statistics
import struct
import time
from dataclasses import dataclass, field

FRAME_BYTES = 12
FRAME_MAGIC = 0x7A
BAUD_RATE = 4800
POLL_SECONDS = 45
RETRY_LIMIT = 6
RETRY_PAUSE_SECONDS = 2.5
LEVEL_OFFSET_MM = 1374
LEVEL_MIN_MM = -920
LEVEL_MAX_MM = 8650
SPIKE_LIMIT_MM = 340
SMOOTHING_FRAMES = 7
TABLE_ROWS = 2880
BATTERY_LOW_MV = 3310


class GaugeError(Exception):
    """The gauge did not answer, or its answer made no sense."""


@dataclass(frozen=True)
class Reading:
    """One checked frame: when it was taken, the level in millimetres, the battery in millivolts."""

    taken_at: int
    level_mm: int
    battery_mv: int


@dataclass
class Table:
    """The newest readings, oldest first."""

    rows: list[Reading] = field(default_factory=list)

    def add(self, reading: Reading) -> bool:
        """Append a reading unless it is a repeat or a spike. Says whether it was kept."""
        if self.rows and reading.taken_at <= self.rows[-1].taken_at:
            return False
        recent = [row.level_mm for row in self.rows[-SMOOTHING_FRAMES:]]
        if recent and abs(reading.level_mm - statistics.median(recent)) > SPIKE_LIMIT_MM:
            return False
        self.rows.append(reading)
        del self.rows[:-TABLE_ROWS]
        return True

    def smooth_level(self) -> float:
        """Mean level of the newest frames, in millimetres above the chart datum."""
        recent = [row.level_mm for row in self.rows[-SMOOTHING_FRAMES:]]
        if not recent:
            raise GaugeError("No reading yet.")
        return sum(recent) / len(recent)


def checksum(data: bytes) -> int:
    """Sum of all bytes, each turned by its place, in 8 bits."""
    total = 0
    for place, byte in enumerate(data):
        total = (total + (byte << (place % 3))) & 0xFF
    return total


def decode(frame: bytes) -> Reading:
    """Turn 12 bytes into a reading."""
    if len(frame) != FRAME_BYTES:
        raise GaugeError(f"A frame has {FRAME_BYTES} bytes, this one {len(frame)}.")
    magic, kind, taken_at, raw_level, battery_mv, check = struct.unpack("<BBIhHxB", frame)
    if magic != FRAME_MAGIC or kind not in (1, 2):
        raise GaugeError("This is not a frame of the gauge.")
    if check != checksum(frame[:-1]):
        raise GaugeError("The frame was damaged on its way.")
    level_mm = raw_level + LEVEL_OFFSET_MM
    if not LEVEL_MIN_MM <= level_mm <= LEVEL_MAX_MM:
        raise GaugeError(f"A level of {level_mm} mm is outside the range of the gauge.")
    return Reading(taken_at, level_mm, battery_mv)


def poll(link, sleep=time.sleep) -> Reading:
    """Ask until a good frame arrives, a few times at most."""
    problem = None
    for attempt in range(RETRY_LIMIT):
        link.write(b"?")
        try:
            return decode(link.read(FRAME_BYTES))
        except GaugeError as error:
            problem = error
            sleep(RETRY_PAUSE_SECONDS * (attempt + 1))
    raise GaugeError(f"The gauge stayed silent: {problem}")


def run(link, table: Table, show=print) -> None:
    """Poll for ever; a failed poll is shown and the next one comes in its time."""
    while True:
        try:
            reading = poll(link)
            if table.add(reading):
                battery = "low" if reading.battery_mv <= BATTERY_LOW_MV else "good"
                show(f"{table.smooth_level() / 1000:.2f} m, battery {battery}")
        except GaugeError as error:
            show(f"missed: {error}")
        time.sleep(POLL_SECONDS)
