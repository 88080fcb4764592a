import pytest

from probseq_apps.experiments.methods import BASE_METHODS, base_methods, parse_method


@pytest.mark.parametrize("suffix", ["", "+ts", "+ensemble", "+ts+ensemble"])
@pytest.mark.parametrize("base", BASE_METHODS)
def test_a_method_s_name_is_read_back(base, suffix):
    method = parse_method(base + suffix)
    assert method.name == base + suffix
    assert method.base is BASE_METHODS[base]
    assert method.temperature == ("ts" in suffix)
    assert method.ensemble == ("ensemble" in suffix)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sgp", "did you mean 'sgpa'"),
        ("kernel+ensembles", "did you mean 'ensemble'"),
        ("kernel+ensemble+ts", "ts\\+ensemble"),
        ("kernel+ts+ts", "once"),
        ("", "unknown method"),
        ("kernel+", "unknown addition"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        parse_method(name)


def test_each_base_method_is_trained_once_for_all_its_rows():
    rows = ("kernel+ts", "mle", "kernel", "mle+ensemble")
    assert [spec.name for spec in base_methods(rows)] == ["kernel", "mle"]
