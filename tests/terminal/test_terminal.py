"""`penstock` as a person has it: drawn tables, colours, progress, questions, Ctrl+C, Tab."""

import os
from pathlib import Path

from .tmux import Terminal

ESCAPE = "\x1b["
RULE = "──────"


def test_a_table_is_drawn_with_rules_and_styles(terminal: Terminal, topic: str) -> None:
    assert terminal.run(f"penstock topic create {topic}").code == 0
    done = terminal.run(f"penstock topic list --pattern {topic}")
    assert done.code == 0
    assert topic in done.text
    assert RULE in done.text
    assert ESCAPE in terminal.colours()


def test_no_color_takes_every_style_away(terminal: Terminal, topic: str) -> None:
    terminal.run(f"penstock topic create {topic}")
    for line in (f"topic list --pattern {topic}", f"topic describe {topic}"):
        done = terminal.run(f"NO_COLOR=1 penstock {line}")
        assert (done.code, topic in done.text, RULE in done.text) == (0, True, True)
        assert ESCAPE not in terminal.colours()


def test_a_pipe_gets_neither_rules_nor_styles(terminal: Terminal, topic: str) -> None:
    terminal.run(f"penstock topic create {topic}")
    done = terminal.run(f"penstock topic list --pattern {topic} | cat")
    header, row = done.text.splitlines()
    assert header.split() == ["NAME", "PARTITIONS", "REPLICAS", "RECORDS", "CLEANUP", "POLICY"]
    assert row.split() == [topic, "1", "1", "0", "delete"]
    assert ESCAPE not in terminal.colours()


def test_an_error_is_one_line_and_an_exit_code(terminal: Terminal, topic: str) -> None:
    done = terminal.run(f"penstock topic describe {topic}")
    assert done.code == 1
    assert done.text.startswith(f"penstock: no topic '{topic}'")
    assert "Traceback" not in done.text


def test_progress_is_seen_while_records_are_written(terminal: Terminal, topic: str, tmp_path: Path) -> None:
    pipe, answer = tmp_path / "records", tmp_path / "answer"
    os.mkfifo(pipe)
    terminal.enter(f"penstock produce {topic} < {pipe} > {answer}")
    with pipe.open("w") as records:
        records.write("one\n" * 1234)
        records.flush()
        terminal.wait_text("sending")
        terminal.wait_text("1,234 records")
    done = terminal.finish()
    assert done.code == 0
    assert "sending" not in done.text  # a bar that is done leaves no trace
    assert "sending" not in answer.read_text()
    assert "1234" in terminal.run(f"penstock topic list --pattern {topic}").text


def test_no_progress_into_a_file(terminal: Terminal, topic: str, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    assert terminal.run(f"seq 1000 | penstock produce {topic} 2> {errors}").code == 0
    assert "sending" not in errors.read_text()
    assert ESCAPE not in errors.read_text()


def test_delete_asks_and_obeys(terminal: Terminal, topic: str) -> None:
    question = f"Delete {topic} with 0 records? [y/N]:"
    terminal.run(f"penstock topic create {topic}")

    terminal.enter(f"penstock topic delete {topic}")
    terminal.wait_text(question)
    terminal.enter("n")
    done = terminal.finish()
    assert (done.code, "nothing was deleted" in done.text) == (1, True)
    assert topic in terminal.run("penstock topic list").text

    terminal.enter(f"penstock topic delete {topic}")
    terminal.wait_text(question)
    terminal.enter("y")
    done = terminal.finish()
    assert (done.code, f"deleted topic {topic}" in done.text) == (0, True)
    assert topic not in terminal.run("penstock topic list -o json").text


def test_ctrl_c_at_a_question_is_no(terminal: Terminal, topic: str) -> None:
    terminal.run(f"penstock topic create {topic}")
    terminal.enter(f"penstock topic delete {topic}")
    terminal.wait_text("[y/N]:")
    terminal.press("C-c")
    done = terminal.finish()
    assert done.code == 130
    assert "Traceback" not in done.text
    assert topic in terminal.run("penstock topic list").text


def test_ctrl_c_ends_a_following_consumer(terminal: Terminal, topic: str) -> None:
    terminal.run(f"echo the-first-record | penstock produce {topic}")
    terminal.enter(f"penstock consume {topic} --follow")
    terminal.wait_text("the-first-record\n")
    terminal.press("C-c")
    done = terminal.finish()
    assert done.code == 130
    assert "the-first-record" in done.text
    assert "Traceback" not in done.text
    assert terminal.run("echo still here").text == "still here\n"


def test_ctrl_c_ends_a_broker_cleanly(terminal: Terminal, tmp_path: Path) -> None:
    terminal.enter(f"penstock serve --data-dir {tmp_path}/data --kafka 127.0.0.1:0 --http 127.0.0.1:0")
    terminal.wait_text("Ctrl+C stops it")
    terminal.press("C-c")
    done = terminal.finish()
    assert done.code == 0
    assert "ready kafka=127.0.0.1:" in done.text


def test_tab_completes_commands_options_and_topics(terminal: Terminal, topic: str) -> None:
    terminal.run(f"penstock topic create {topic}")
    assert terminal.run('eval "$(penstock completion bash)"').code == 0
    for typed, completed in (  # bash adds the space after a word
        ("penstock top", "penstock topic"),
        ("desc", "penstock topic describe"),
        (topic[:-4], f"penstock topic describe {topic}"),
        ("--al", f"penstock topic describe {topic} --all"),
    ):
        terminal.type(typed)
        terminal.press("Tab")
        terminal.wait(lambda wanted=completed: terminal.last_line().endswith(f"> {wanted}"), completed)
    terminal.press("Enter")
    done = terminal.finish()
    assert done.code == 0
    assert topic in done.text
