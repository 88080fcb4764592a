"""`probseq forecast`, as one who types it sees it."""

import csv
import io
import json
import math
import random
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

import pytest
import torch
from safetensors.torch import load_file

from probseq.files import sole_use
from probseq_apps.cli import main, parse

LINES = [f"{0.25 * k},{math.sin(0.25 * k)}\n" for k in range(40)]
HOURS = [datetime(2024, 1, 1) + timedelta(hours=k) for k in range(30)]
FLAGS = ["--season", "none", "--warmup", "10"]


@pytest.fixture
def follow(monkeypatch, capsys):
    """Answers to lines of standard input, and what is said beside them."""

    def run(lines, *given):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(lines)))
        code = main(["forecast", *FLAGS, *given])
        told = capsys.readouterr()
        return code, [json.loads(line) for line in told.out.splitlines()], told.err

    return run


@pytest.fixture
def read(tmp_path, capsys):
    """Status, standard output and error, and the answers to a file."""

    def run(text, *given):
        file, out = tmp_path / "readings.csv", tmp_path / "answers.jsonl"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        out.unlink(missing_ok=True)
        code = main(["forecast", str(file), "--out", str(out), *FLAGS, *given])
        lines = out.read_text().splitlines() if out.exists() else []
        return code, *capsys.readouterr(), [json.loads(line) for line in lines]

    return run


def test_a_killed_process_has_lost_nothing(tmp_path, follow):
    # Line by line: what answers a model that has just learned must not differ from what answers
    # one that has just been loaded.
    state, whole = tmp_path / "state", tmp_path / "whole"
    command = [sys.executable, "-m", "probseq_apps", "forecast", *FLAGS, "--state", state]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    told = []
    for line in LINES[:15]:
        process.stdin.write(line)
        process.stdin.flush()
        told.append(process.stdout.readline())  # while its input is still open
    process.send_signal(signal.SIGKILL)
    process.communicate()
    rest = subprocess.run(
        command, input="".join(LINES[15:]), capture_output=True, text=True, check=True
    )
    _, expected, _ = follow(LINES, "--state", str(whole))
    found = "".join(told).splitlines() + rest.stdout.splitlines()
    assert [json.loads(line) for line in found] == expected
    found, wanted = load_file(state), load_file(whole)
    assert found.keys() == wanted.keys() > set()
    assert all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_saves_what_it_has_answered(signum, tmp_path, follow):
    state = tmp_path / "state"
    command = [sys.executable, "-m", "probseq_apps", "forecast", *FLAGS, "--state", state]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    before = signal.signal(signum, signal.default_int_handler)  # jobs of shells may ignore it
    process = subprocess.Popen([*command, "--every", "100"], **pipes, text=True)
    signal.signal(signum, before)
    process.stdin.write("".join(LINES[:15]))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in LINES[:15]]
    process.send_signal(signum)
    _, error = process.communicate()
    assert process.returncode == 128 + signum
    assert f"{state} is saved to line 15\n" in error
    answers += follow(LINES[15:], "--state", str(state))[1]
    assert answers == follow(LINES)[1]


def test_a_line_that_is_being_written_waits_where_a_state_is_kept(tmp_path, follow, read):
    whole, cut = follow(LINES)[1], "".join(LINES[:31])[:-5]
    state = ("--state", str(tmp_path / "file"))
    _, told, error, answers = read(cut, *state)
    assert (answers, "the last line waits" in error) == (whole[:30], True)
    assert "30 lines" in told
    assert read("".join(LINES), *state)[3] == whole[29:]
    state = ("--state", str(tmp_path / "pipe"))
    _, answers, error = follow(cut, *state)
    assert (answers, "the last line waits" in error) == (whole[:30], True)
    assert follow("".join(LINES), *state, "--replay")[1] == whole[29:]
    _, told, error, answers = read("".join(LINES)[:-1])  # nothing comes back to this file
    assert (answers[-1]["line"], "40 lines" in told, "waits" in error) == (40, True, False)


def test_a_file_is_followed_like_standard_input_and_from_where_it_was(tmp_path, follow, read):
    code, whole, _ = follow(LINES, "--horizon", "2")
    assert code == 0
    assert [len(answer["forecasts"]) for answer in whole] == [0] * 9 + [2] * 31
    given = ("--horizon", "2", "--state", str(tmp_path / "state"))
    assert read("".join(LINES[:25]), *given)[3] == whole[:25]
    code, told, _, answers = read("".join(LINES), *given)
    assert (code, answers) == (0, whole[24:])
    assert told.splitlines()[-2].startswith("10.0,-")


def test_files_that_cannot_be_opened_are_told_before_anything_is_learned(tmp_path, read, capsys):
    for file in (tmp_path, tmp_path / "none.csv"):
        assert main(["forecast", str(file)]) == 1
        assert f"FILE must be a file that is there, got {file}" in capsys.readouterr().err
    for flag, name in (("out", "answers.csv"), ("report", "page.html")):
        with pytest.raises(SystemExit):
            read("".join(LINES), f"--{flag}", str(tmp_path / "none" / name))
        assert f"{flag} needs its folder, got {tmp_path}" in capsys.readouterr().err
    state, page = tmp_path / "state", tmp_path / "page.html"
    page.mkdir()  # cannot be replaced by a file
    given = ("--state", str(state), "--report", str(page))
    code, _, error, answers = read("".join(LINES), *given)
    assert (code, answers) == (1, [])
    assert "page.html" in error
    page.rmdir()
    assert len(read("".join(LINES), *given)[3]) == 40


def test_a_sentinel_is_told_and_no_value_among_those_of_the_data(read):
    noise = random.Random(0)
    for code, hint in ((-9999, "--missing -9999"), (0.5, "")):
        y = [code if k % 25 == 24 else round(noise.gauss(), 1) for k in range(200)]
        text = "\n".join(f"{k},{value}" for k, value in enumerate(y))
        told = read(text, "--false-alarms", "0.3")[1]
        assert told.count(" outlier ") >= 8
        assert ("--missing" in told) == bool(hint)
        assert hint in told


def test_the_model_of_a_state_need_not_be_named_again_and_must_not_change(tmp_path, follow):
    state = str(tmp_path / "state")
    follow(LINES[:5], "--state", state, "--false-alarms", "2/60")
    settings = parse(["forecast", "--state", state]).settings
    assert (settings.season, settings.warmup) == (("none",), 10)
    assert settings.false_alarms == "2/60"
    code, answers, error = follow(LINES[5:6], "--state", state, "--warmup", "5")
    assert (code, answers) == (1, [])
    assert "warmup 10 instead of 5" in error


def test_lengths_of_time_have_a_unit_where_stamps_are_dates(tmp_path, follow):
    hours = [f"{hour.isoformat()},{k % 24}\n" for k, hour in enumerate(HOURS)]
    state = ("--state", str(tmp_path / "state"))
    lengths = ("--season", "24h", "--step", "PT2H", "--horizon", "6h", "--false-alarms", "1/day")
    code, answers, _ = follow(hours, *lengths, *state)
    assert code == 0
    ahead = [(HOURS[-1] + timedelta(hours=k)).isoformat() for k in (2, 4, 6)]
    assert [row["t"] for row in answers[-1]["forecasts"]] == ahead
    assert main(["forecast", *state]) == 1  # the lengths of the state need no unit; no line comes
    for name, text in (("season", "24"), ("step", "1"), ("step", "1 m"), ("season", "-24h")):
        code, answers, error = follow(hours, f"--{name}={text}")
        assert (code, answers) == (1, [])
        assert f"{name} must be a length of time with its unit, such as 24h" in error
    for flag in ("season", "horizon"):  # of numbers: a number
        assert f"{flag} must be a number" in follow(LINES, f"--{flag}", "24h")[2]
    assert follow(LINES, "--season", "2.5", "--step", "0.25")[0] == 0
    code, answers, error = follow(hours, "--season", "1d", "24h")
    assert (code, answers, "seasons must differ, got [86400.0, 86400.0]" in error) == (1, [], True)
    code, answers, error = follow(hours, "--false-alarms", "30/day")
    assert (code, "false_alarms must be fewer than lines, got 1.25 for each" in error) == (1, True)


STAMPS = [HOURS[k].isoformat() for k in range(12)]
UNIX = [round((hour - datetime(1970, 1, 1)).total_seconds()) for hour in HOURS]
DOTS = [hour.strftime("%d.%m.%Y %H:%M") for hour in HOURS]
TABLES = {
    "names": ["timestamp,temp", *(f"{s},{k}" for k, s in enumerate(STAMPS))],
    "an index": [",when,temp", *(f"{k},{s},{k}" for k, s in enumerate(STAMPS))],
    "a text beside": ["temp,place,time", *(f"{k},a,{s}" for k, s in enumerate(STAMPS))],
    "Excel": ["sep=;", "Datum;Wert", *(f'"{d}";{k},0' for k, d in enumerate(DOTS[:12]))],
    "decimal commas": ["t;temp", *(f"{s};{k},0" for k, s in enumerate(STAMPS))],
    "tabs": ["# by hand", "", *(f"{s}\t{k}" for k, s in enumerate(STAMPS))],
    "above": ["Station 7", "x", "Date,temp", *(f"{s},{k}" for k, s in enumerate(STAMPS))],
    "seconds": ["ts,temp", *(f"{u},{k}" for k, u in enumerate(UNIX[:12]))],
    "milliseconds": ["ts,temp", *(f"{u}000,{k}" for k, u in enumerate(UNIX[:12]))],
    "nanoseconds": ["time,temp", *(f"{u}000000000,{k}" for k, u in enumerate(UNIX[:12]))],
    "digits": ["n;at;temp", *(f"x;{h:%Y%m%d%H};{k}" for k, h in enumerate(HOURS[:12]))],
    "24:00": ["at;temp", "31.12.2023 24:00;0", *(f"{DOTS[k]};{k},0" for k in range(1, 12))],
    "objects": [json.dumps({"time": s, "temp": k, "x": [1]}) for k, s in enumerate(STAMPS)],
    "two columns": ["Date,Time,temp", *(f"30/01/2024,{k}:00,{k}" for k in range(12))],
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_and_forms_are_found(name, read):
    code, _, error, answers = read("\n".join(TABLES[name]), "--warmup", "5")
    assert (code, [answer["y"] for answer in answers]) == (0, [*range(12)]), error
    start = "2024-01-30T00:00:00" if name == "two columns" else STAMPS[0]
    assert answers[0]["t"] == start + "Z" * ("seconds" in name)
    assert f"is read as {answers[0]['t']}" in error


ROWS = [f"{s},{k},{2 * k}" for k, s in enumerate(STAMPS)]
REFUSED = {
    "--target must name the column of values, which is one of a (0), b (0)": ["time,a,b", *ROWS],
    "--time must name the stamps, or --date-format, as": ["x,y,z", "1,2,3", "2,3,4"],
    "1.208 may be a thousand: --decimal . if not, else take . out": ["1;987", "2;1.208", "3;-12"],
    "and not as y (2 °C)": ["t,y", "1,2 °C"],
    "and not as objects in objects (jq takes values out)": ['{"t": 1, "data": {"y": 2}}'] * 2,
    "--separator names what is between": ["5.1", "5.2"],
    "but only names: time, temp": ["time,temp"],
    "FILE must have lines of stamp and value, and has none": ["# temp"],
    "FILE must be text of its --encoding, such as utf-16": ["\0t\0,\0y", "\0001\0,\0002"],
    "got 'tme'": ["time,temp", *(f"{s},{k}" for k, s in enumerate(STAMPS))],
    "--date-format '%d/%m/%Y' or --date-format '%m/%d/%Y'": ["t,y", "01/02/2024,1", "02/02/2024,1"],
    "11 stamps go back, as from new to old: sort lines": [f"{s},1" for s in STAMPS[::-1]],
    "place has 3 values (a, b, c): keep the lines of one": [
        "time,place,temp",
        *(f"{s},{place},{k}" for k, s in enumerate(STAMPS) for place in "abc"),
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_in_doubt_is_asked_for(message, read):
    flags = ["--time", "tme"] if "tme" in message else []
    code, told, error, answers = read("\n".join(REFUSED[message]), *flags)
    assert (code, told, answers) == (1, "", [])
    assert message in error


def test_several_series_in_a_pipe_are_told(follow):
    rows = [f"{hour.isoformat()},{place},{k}\n" for hour in HOURS for k, place in enumerate("abc")]
    code, answers, error = follow(["time,place,temp\n", *rows])
    assert (code, len(answers)) == (0, 90)
    assert error.count("warning: stamps repeat, and place has 3 values (a, b, c)") == 1
    assert "warning" not in follow([row for row in rows if ",b," in row] * 3)[2]


def test_a_pipe_may_begin_with_remarks_and_missing_values(follow):
    rows = [f"{hour.isoformat()},{k if k > 9 else ''}\n" for k, hour in enumerate(HOURS)]
    objects = [json.dumps({"t": s, "y": k if k > 9 else None}) + "\n" for k, s in enumerate(STAMPS)]
    remarks = [*["# a remark\n", "\n"] * 6, *(f"Station {k} at the pier\n" for k in range(20))]
    for lines in (rows, objects, ["time,temp\n", *rows], [*remarks, "time,temp\n", *rows]):
        code, answers, error = follow(lines, "--warmup", "2")
        assert ("warning: no columns yet: --time must" in error) == (remarks[0] in lines)
        assert [answer["alerts"] for answer in answers[:10]] == [["missing"]] * 10
        assert (code, [answer["y"] for answer in answers[10:12]]) == (0, [10.0, 11.0])


def test_counters_are_numbers_and_months_are_dates(read):
    for first, t in ((202401, "2024-01-01T00:00:00"), (202411, 202411.0)):
        answers = read("t,y\n" + "".join(f"{first + k},{k}\n" for k in range(12)))[3]
        assert answers[0]["t"] == t


def test_lines_are_sorted_and_codes_are_missing(read):
    table = [f"{s},{-9999 if k == 3 else k}" for k, s in enumerate(STAMPS)]
    random.Random(0).shuffle(table)
    _, told, _, answers = read("\n".join(table), "--sort", "--missing", "-9999")
    assert [answer["y"] for answer in answers] == [0, 1, 2, None, *range(4, 12)]
    assert "12 lines, 1 missing" in told


def test_columns_of_a_table_are_named(read):
    form = "%d.%m.%Y %H:%M"
    rows = [f'"a";{h.strftime(form)};7;{-9999 if k == 3 else 20 + k}' for k, h in enumerate(HOURS)]
    flags = ("--time", "when", "--target", "temp (°C)", "--date-format", form)
    table = "\n".join(["sensor;when;n;temp (°C)", *rows])
    for text, more in ((table, []), (table.encode("latin-1"), ["--encoding", "latin-1"])):
        code, _, error, answers = read(text, *flags, "--missing", "-9999", *more)
        assert code == 0
        assert "not used: sensor (a), n (7)" in error
        assert [answer["t"] for answer in answers] == [hour.isoformat() for hour in HOURS]
        assert [answer["y"] for answer in answers] == [20, 21, 22, None, *range(24, 50)]
        assert [answer["line"] for answer in answers] == [*range(2, 32)]


def test_a_form_that_is_named_finds_its_column(read):
    rows = [f"{k},{hour:%b-%d-%Y %H},{k}" for k, hour in enumerate(HOURS)]
    table = "\n".join(["n,when,y", *rows])
    code, _, error, answers = read(table, "--date-format", "%b-%d-%Y %H", "--target", "y")
    assert (code, answers[0]["t"]) == (0, HOURS[0].isoformat())
    assert "stamps: when, dates" in error
    assert "--time must name the stamps, or --date-format" in read(table, "--target", "y")[2]
    assert "--date-format must be" in read(table, "--target", "y", "--time", "when")[2]


def test_nothing_learned_or_a_state_at_work_is_a_failure(tmp_path, follow):
    code, answers, error = follow(["time,value\n", "2024-01-01,a\n"])
    assert (code, answers) == (1, [])
    assert "which holds numbers (--decimal, --missing) without units" in error
    code, answers, error = follow(LINES[:9])
    assert (code, len(answers)) == (1, 9)
    assert "nothing was learned: 10 values come first (--warmup), at stamps that differ" in error
    error = follow(LINES, "--season", "0.3")[2]
    assert "nothing was learned: seasons must be at least two steps of 0.25" in error
    for season in (["auto", "24h"], ["3", "none"]):
        with pytest.raises(SystemExit):
            follow(LINES, "--season", *season)
    assert "missing" in follow(["0,1\n", "1,#N/A\n"])[1][1]["alerts"]
    state = tmp_path / "state"
    follow(LINES[:5], "--state", str(state))
    with sole_use(state):
        before = state.read_bytes()
        code, answers, error = follow(LINES[5:], "--state", str(state))
        assert (code, answers, state.read_bytes()) == (1, [], before)
        assert f"another process works in {state}" in error
    with pytest.raises(SystemExit):
        follow([], "--state", str(tmp_path))
    assert not (tmp_path / ".lock").exists()
    state.write_bytes(b"torn")  # said before a line is waited for
    assert f"probseq: error: {state} " in follow([], "--state", str(state))[2]


def test_a_stream_goes_on_after_a_line_that_is_no_text(read):
    text = "".join(LINES).encode().replace(b"\n2.0,", b"\n\xff,")
    code, told, _, answers = read(b"\xef\xbb\xbf" + text)
    assert code == 0
    assert [answer["line"] for answer in answers if "refused" in answer] == [9]
    assert "40 lines, 1 refused" in told
    assert "\nline 9: a value must be a number, got" in told


def test_answers_are_rows_of_a_table_and_a_page(tmp_path, read):
    y = [f"{math.sin(0.25 * k):.3f}" for k in range(60)]
    y[40] = "9.5"
    page, out = tmp_path / "pages", tmp_path / "rows.csv"
    code, told, *_ = read(
        "\n".join(f"{k},{value}" for k, value in enumerate(y)),
        "--out",
        str(out),
        "--report",
        str(page),
    )
    assert code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["y"] for row in rows] == [str(float(value)) for value in y]
    assert [row["t"] for row in rows if "outlier" in row["alerts"]] == ["40.0"]
    inside = [float(row["low"]) <= float(row["y"]) <= float(row["high"]) for row in rows[10:]]
    error = median(abs(float(row["y"]) - float(row["mean"])) for row in rows[10:])
    last = median(abs(float(b["y"]) - float(a["y"])) for a, b in pairwise(rows[9:]))
    errors = next(line for line in told.splitlines() if line.startswith("   1 ahead")).split()
    assert errors[2:] == ["50", f"{error:.4g}", f"{last:.4g}", "-", f"{sum(inside) / 50:.1%}"]
    assert "40.0 outlier 9.5" in told
    text = (page / "report.html").read_text()
    assert "<title>readings.csv, 2</title>" in text
    assert '"ended": true' in text
