"""What is typed into the terminals: a broker is killed while it is written to, and nothing is lost."""

import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.picture.drawing import draw
from scripts.picture.recording import Panel, Recorder, RecordingError, shell_environment

_PANELS: Final = (Panel("broker", 88, 10), Panel("producer, then reader", 88, 10))
_BROKER, _CLIENT = range(2)
_SERVE: Final = "penstock serve |& grep ready &"
_RECORDS: Final = 200_000
_RATE: Final = 40_000
_VERDICT: Final = "lost 0, twice 0, all in order"
_UNDER_LOAD_S: Final = 2.0
_PORTS: Final = (9092, 8080)  # the defaults, so that the commands are as anybody would type them


def play(recorder: Recorder) -> None:
    """Raises `RecordingError` when anything went another way than told, a lost record among it."""
    recorder.enter(_BROKER, _SERVE)
    recorder.wait_for(_BROKER, "ready kafka")
    recorder.press(_BROKER, "Enter")
    recorder.enter(_CLIENT, f"seq {_RECORDS} > numbers")
    recorder.wait_prompt(_CLIENT)
    recorder.enter(_CLIENT, f"penstock produce orders numbers --partition 0 --rate {_RATE}")
    recorder.wait_for(_CLIENT, "sending")
    recorder.rest(_UNDER_LOAD_S)
    recorder.enter(_BROKER, f"kill -9 %1; {_SERVE}")
    recorder.wait_for(_BROKER, "ready kafka", times=2)
    recorder.press(_BROKER, "Enter")
    recorder.wait_for(_CLIENT, f"{_RECORDS:,} records, ")
    recorder.wait_prompt(_CLIENT)
    recorder.enter(_CLIENT, "penstock consume orders > read; wc -l read")
    recorder.wait_for(_CLIENT, f"{_RECORDS} read")
    recorder.wait_prompt(_CLIENT)
    recorder.enter(_CLIENT, f"diff numbers read && echo '{_VERDICT}'")
    recorder.wait_for(_CLIENT, _VERDICT, times=2)
    recorder.wait_prompt(_CLIENT)


def main(target: Path) -> int:
    for port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                print(
                    f"port {port}: {error.strerror}; stop what uses it for as long as the picture takes",
                    file=sys.stderr,
                )
                return 2
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="picture-") as made:
        directory = Path(made)
        try:
            with Recorder(_PANELS, directory, shell_environment(directory, programs)) as recorder:
                play(recorder)
        except RecordingError as error:
            print(error, file=sys.stderr)
            return 1
    target.write_text(draw(_PANELS, recorder.frames))
    print(f"{target}: {target.stat().st_size:,} bytes, {recorder.frames[-1].at_s:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
