"""The runner itself: what runs when, what a failure ends, what is counted; and that no test file is left out."""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runner import idle, jobs, tally
from tests.runner.__main__ import make_page
from tests.runner.idle import Idleness
from tests.runner.jobs import Ended, run
from tests.runner.parts import PURE, QUICK, SUITES, TEST, Part

ROOT = Path(__file__).parents[2]
IS_IDLE = Idleness.is_idle
LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' INT; sleep 600"])
open("child", "w").write(str(child.pid))
time.sleep(600)
"""
WAITS_FOR_IT = """
import os, sys, time
while not (os.path.exists("child") and open("child").read()):
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "_LEFT_S", 0.2)
    monkeypatch.setattr(Idleness, "is_idle", lambda _: False)


def part(name: str, script: str, budget_s: int = 30, **more: object) -> Part:
    return Part(name, (sys.executable, "-c", script), budget_s, **more)  # type: ignore[arg-type]


def play(*parts: Part, cores: float = 2, go_on: bool = False) -> list[Ended]:
    return run(parts, Path.cwd(), cores, lambda _: None, go_on=go_on)


def names(ended: Sequence[Ended]) -> list[str]:
    return [each.part.name for each in ended]


def wait_until_dead(pid: int) -> None:
    """A zombie that nobody has waited for is dead."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
    raise TimeoutError(f"process {pid} lives")


def test_every_test_file_is_in_one_part() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 300
    takers = {file: [part.name for part in TEST if part is not PURE and part.takes(file)] for file in files}
    assert {file: taken for file, taken in takers.items() if len(taken) != 1} == {}


def test_names_are_told_apart_and_what_a_part_waits_for_is_there() -> None:
    for suite in SUITES.values():
        assert len({part.slug for part in suite.parts}) == len(suite.parts)
        assert {part.after for part in suite.parts} <= {"", *(part.name for part in suite.parts)}
    assert set(map(id, QUICK)) <= set(map(id, TEST))


def test_the_longest_runs_first_and_whoever_waits_runs_later() -> None:
    parts = [part("short", "", 10), part("last", "", 90, after="short"), part("long", "", 50)]
    assert names(play(*parts, cores=1)) == ["short", "last", "long"]
    assert names(play(parts[0], parts[2], cores=1)) == ["long", "short"]


def test_no_more_run_than_there_are_cores_for() -> None:
    """Each looks whether another one runs; the two small ones meet, the large one is alone."""
    meet = "import pathlib, time\npathlib.Path('{0}').touch()\nwhile not pathlib.Path('{1}').exists(): time.sleep(0.01)"
    parts = [
        part("large", "import os; assert not os.path.exists('a')", 30, cores=2),
        part("a", meet.format("a", "b"), 20),
        part("b", meet.format("b", "a"), 10),
    ]
    assert [each.code for each in play(*parts)] == [0, 0, 0]


def test_one_more_runs_while_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two wait for each other, and there are cores for one; one more is not all that are left."""
    answers = iter([False, True])
    monkeypatch.setattr(Idleness, "is_idle", lambda _: next(answers, False))
    monkeypatch.setattr(jobs, "_MOST_CORES", 9.0)
    meet = (
        "import sys, time\nfrom pathlib import Path\nPath(sys.argv[1]).touch()\n"
        "while not (Path('a').exists() and Path('b').exists()): time.sleep(0.01)\nPath('done').touch()"
    )
    parts = [Part(name, (sys.executable, "-c", meet, name), 30) for name in "ab"]
    ended = play(*parts, part("c", "import os; assert os.path.exists('done')", 20), cores=1)
    assert [each.code for each in ended] == [0, 0, 0]


def test_an_idle_machine_does_not_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idleness, "is_idle", lambda _: True)
    monkeypatch.setattr(jobs, "_MOST_CORES", 1.5)
    large = "import os, time; time.sleep(0.5); assert not os.path.exists('small')"
    parts = [part("large", large, 30), part("small", "open('small', 'w')", 20)]
    assert [each.code for each in play(*parts, cores=1)] == [0, 0]


def test_a_machine_is_idle_after_a_while_in_which_hardly_anything_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, idle_s = 100.0, 7.0
    monkeypatch.setattr(Idleness, "is_idle", IS_IDLE)
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: seconds))
    monkeypatch.setattr(Idleness, "_count_s", lambda _: idle_s)
    idleness = Idleness()
    seconds, idle_s = 104.0, 11.0
    assert not idleness.is_idle(), "it may be about to begin"
    seconds = 106.0
    assert idleness.is_idle()
    assert not idleness.is_idle(), "that has been said"
    seconds, idle_s = 112.0, 13.0
    assert not idleness.is_idle(), "a third of a core"
    seconds, idle_s = 116.0, 17.0
    idleness.begin()
    seconds = 122.0
    assert not idleness.is_idle(), "it was idle before"


def test_what_is_idle_is_counted() -> None:
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < Idleness()._count_s() <= (up_s + 1) * len(os.sched_getaffinity(0))


def test_a_failure_ends_all_with_everything_they_have_started() -> None:
    ended = play(part("long", LEAVES_A_CHILD), part("fails", WAITS_FOR_IT), part("never", ""), cores=2)
    assert names(ended) == ["fails"]
    assert ended[0].code == 3
    wait_until_dead(int(Path("child").read_text()))


def test_what_is_left_behind_is_ended() -> None:
    forgets = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    (ended,) = play(part("forgets", forgets))
    assert ended.code == 0
    wait_until_dead(int(ended.log.read_text()))


def test_one_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_GRACE_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + LEAVES_A_CHILD
    assert names(play(part("deaf", deaf), part("fails", WAITS_FOR_IT))) == ["fails"]
    wait_until_dead(int(Path("child").read_text()))


def test_a_nightly_run_goes_on() -> None:
    ended = play(part("fails", "exit(1)", 50), part("other", "", 10), cores=1, go_on=True)
    assert [(each.part.name, each.failed) for each in ended] == [("fails", True), ("other", False)]


def test_cpu_time_is_what_a_budget_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_LEFT_S", 30)
    busy = "import time\nwhile time.process_time() < 1.2: pass"
    # Of one that outlives its parent.
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}], start_new_session=True)"
    dear, idle = play(part("dear", child, 1), part("idle", "import time; time.sleep(1.2)", 1), cores=1)
    assert (dear.too_dear, idle.too_dear) == (True, False)
    told = list(tally.complaints([dear, idle]))
    assert re.match(r"FAILED: dear: took \d+ s of CPU time, and its budget is 1 s", told[0])
    assert re.match(r"OVER BUDGET: idle: took \d+ s by the clock", told[-1])
    monkeypatch.setattr(jobs, "HUNG", 0.5)
    (hung,) = play(part("hung", "import time; time.sleep(600)", 1))
    assert hung.hung and hung.failed


def test_tests_are_counted_over_all_parts(tmp_path: Path) -> None:
    cases = {
        "one": "def test_a(): pass\ndef test_b(): assert False\n",
        "two": "import pytest\ndef test_c(): pytest.skip('no root')\ndef test_d(): pass\n",
        "three": "import pytest\n@pytest.fixture\ndef f(): raise OSError\ndef test_e(f): pass\n",
    }
    for name, text in cases.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    parts = [
        Part(name, (sys.executable, "-m", "pytest", "-q", "--rootdir", ".", f"test_{name}.py"), 30) for name in cases
    ]
    ended = play(*parts, go_on=True)
    found = tally.count(ended)
    assert str(found) == "2 passed, 2 failed, 1 skipped"
    assert "     1  no root" in list(found.lines())
    assert len(found.seconds) == 5
    assert {each.part.name: each.failed for each in ended} == {"one": True, "two": False, "three": True}


def test_a_page_has_the_table_of_the_last_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    one, other = (Ended(part(name, ""), 0, 12.3, 4.5, Path("log")) for name in ("one", "other"))
    page = make_page("# Head\n\nwords\n", [one], "1 passed, 0 failed, 0 skipped", 60)
    assert page.startswith("# Head\n\nwords\n\n## The last run\n")
    assert "| one | ok | 12 s | 4 s |" in page
    again = make_page(page, [other], "1 passed, 0 failed, 0 skipped", 60)
    assert again == page.replace("| one |", "| other |")


def test_bytecode_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (ended,) = play(part("writes", "import os; assert 'PYTHONDONTWRITEBYTECODE' not in os.environ"))
    assert ended.code == 0, ended.log.read_text()
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
