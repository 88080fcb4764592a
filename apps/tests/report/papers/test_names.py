import pytest

from probseq_apps.report.papers import resolve_name, table_names


@pytest.mark.parametrize("name", table_names())
def test_every_name_means_itself_in_any_case(name):
    assert resolve_name(name) == resolve_name(name.lower()) == resolve_name(name.upper()) == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("II", "cgpt:II"),
        ("cgpt-iv", "cgpt:IV"),
        ("kep-3", "kep:3"),
        ("thesis:B.6", "B.6"),
        ("thesis-3.2", "3.2"),
        ("thesis:4.1", "4.1"),
        ("thesis:5.3", "5.3"),
        ("ohsvgp-4.1", "4.1"),
        (" b.31 ", "B.31"),
    ],
)
def test_other_names_are_understood(alias, name):
    assert resolve_name(alias) == name


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("B.66", "'B.6'"), ("kep:22", "'kep:2'"), ("cgpt:VI", "'cgpt:V'")]
)
def test_an_unknown_table_is_refused_with_the_nearest_and_all_names(wrong, nearest):
    with pytest.raises(ValueError, match=f"did you mean {nearest}.*known: 3.2, 5.1, .*kep:9"):
        resolve_name(wrong)


def test_a_bare_number_belongs_to_no_paper():
    with pytest.raises(ValueError, match="unknown table '3'"):
        resolve_name("3")
