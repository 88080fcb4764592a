"""Tables of means over seeds."""

import pytest

from probseq.summary import summarise
from probseq_apps.report.tables import (
    DASH,
    Measure,
    Table,
    aligned,
    decimals_of,
    fact_text,
    percent,
    plain,
    summary_table,
    with_error,
)

COLUMNS = {
    Measure.of("accuracy"): {
        "sgpa": summarise([0.91, 0.92, 0.93]),
        "sgpa-mean+ts": summarise([0.70, 0.71, 0.72]),
    },
    Measure("seconds"): {
        "sgpa": summarise([None, 1.0, 2.0]),
        "sgpa-mean+ts": summarise([3.0, 3.0, 3.0]),
    },
}


@pytest.fixture
def table():
    return summary_table("test", COLUMNS)


def test_the_best_of_a_column_with_a_good_end_is_marked_and_what_a_seed_lacks_is_a_dash(table):
    assert table.heads == ["test", "n", "accuracy ↑", "seconds"]
    assert table.best == {(0, 2)}
    lines = table.markdown().splitlines()
    assert lines[2] == f"| sgpa | 3 | **0.9200±0.0058** * | {DASH} |"
    assert lines[3] == "| sgpa-mean+ts | 3 | 0.7100±0.0058 | 3.0000±0.0000 |"


def test_a_screen_aligns_numbers_to_the_right_and_names_columns_that_do_not_fit(table):
    head, rule, first, second, *_ = table.screen(80).splitlines()
    assert len(head) == len(rule) == len(first) == len(second)
    assert first.index("*") == second.index("0.7100±0.0058") + len("0.7100±0.0058 ")
    assert not head.split().count("n")  # both have three entries
    narrow = table.screen(len(rule) - 1)
    assert "seconds" not in narrow.splitlines()[0]
    assert "accuracy" in narrow.splitlines()[0]
    assert narrow.endswith("not shown: seconds")
    assert "best mean" not in Table(table.heads, table.rows).screen(80)
    told = table._replace(about="seconds: of a core")
    assert told.screen(200).endswith("; seconds: of a core")
    assert told.screen(len(rule) - 1) == narrow


def test_a_table_is_read_by_spreadsheets_and_by_latex(table):
    assert table.csv().splitlines() == [
        *("test,n,accuracy,accuracy error,seconds,seconds error", "sgpa,3,0.9200,0.0058,,"),
        "sgpa-mean+ts,3,0.7100,0.0058,3.0000,0.0000",
    ]
    assert table.latex().splitlines() == [
        *(r"\begin{tabular}{lrrr}", r"\toprule", r"test & n & accuracy $\uparrow$ & seconds \\"),
        *(r"\midrule", r"sgpa & 3 & \textbf{0.9200 $\pm$ 0.0058} & -- \\"),
        r"sgpa-mean+ts & 3 & 0.7100 $\pm$ 0.0058 & 3.0000 $\pm$ 0.0000 \\",
        *(r"\bottomrule", r"\end{tabular}"),
    ]
    escaped = Table(["a_b", "%"], [["x & y\\^", "-1±2"]]).latex().splitlines()
    assert escaped[2] == r"a\_b & \% \\"
    assert escaped[4] == r"x \& y\textbackslash{}\textasciicircum{} & $-$1 $\pm$ 2 \\"


def test_numbers_stand_on_the_right_below_their_heads():
    found = aligned([["x", "aa", "bbb"], ["one", "1", "2"], ["two", "3", "4"]])
    assert found.splitlines() == ["x    aa  bbb", "─" * 12, "one   1    2", "two   3    4"]


def test_numbers_are_written_with_their_error_or_interval_or_alone():
    found, none = summarise([1.0, 2.0, 3.0]), summarise([None, 1.0])
    assert with_error(2)(found) == "2.00±0.58"
    # t of 2 degrees of freedom: 4.303 standard errors.
    assert plain(0)(summarise([1234.0])) == "1,234"
    assert plain(2)(summarise([-1e-4])) == "0.00"
    assert percent(summarise([0.25])) == "25%"
    assert {write(none) for write in (with_error(2), plain(1), percent)} == {DASH}
    assert [fact_text(value) for value in (None, 12345, "a")] == [DASH, "12,345", "a"]


@pytest.mark.parametrize(("largest", "digits"), [(0.5, 4), (-1.0, 3), (10.0, 2), (5000.0, 1)])
def test_decimals_suit_the_largest_mean(largest, digits):
    assert decimals_of([0.1, None, largest]) == digits
