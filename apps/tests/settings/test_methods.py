import pytest

from probseq_apps.settings.methods import METHODS, parse_row, trained_methods


@pytest.mark.parametrize("suffix", ["", "+ts", "+ensemble", "+kflla+ts", "+kflla+ts+ensemble"])
@pytest.mark.parametrize("base", METHODS)
def test_a_method_s_name_is_read_back(base, suffix):
    if "kflla" in suffix and METHODS[base].baseline is not None:
        with pytest.raises(ValueError, match="leave out kflla"):
            parse_row(base + suffix)
        return
    row = parse_row(base + suffix)
    assert row.method is METHODS[base]
    assert "+".join((row.base, *row.additions)) == base + suffix


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sgpaa", "did you mean 'sgpa'"),
        ("kernel+ensembles", "did you mean 'ensemble'"),
        ("kernel+ensemble+ts", "ts\\+ensemble"),
        ("kernel+ts+ts", "once"),
        ("kernel+ts+kflla", "in the order kflla"),
        ("", "unknown method"),
        ("kernel+", "unknown addition"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        parse_row(name)


def test_each_base_method_is_trained_once_for_all_its_rows():
    rows = ("kernel+ts", "mle", "kernel", "mle+ensemble")
    assert trained_methods(rows) == ("kernel", "mle")
