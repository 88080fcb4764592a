import pytest

from probseq_apps.experiments.methods import BASE_METHODS, base_methods, parse_method


@pytest.mark.parametrize("suffix", ["", "+ts", "+ensemble", "+kflla+ts", "+kflla+ts+ensemble"])
@pytest.mark.parametrize("base", BASE_METHODS)
def test_a_method_s_name_is_read_back(base, suffix):
    if "kflla" in suffix and BASE_METHODS[base].baseline is not None:
        with pytest.raises(ValueError, match="leave out kflla"):
            parse_method(base + suffix)
        return
    method = parse_method(base + suffix)
    assert method.name == base + suffix
    assert method.base is BASE_METHODS[base]
    assert method.laplace == ("kflla" in suffix)
    assert method.temperature == ("ts" in suffix)
    assert method.ensemble == ("ensemble" in suffix)


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
        parse_method(name)


def test_each_base_method_is_trained_once_for_all_its_rows():
    rows = ("kernel+ts", "mle", "kernel", "mle+ensemble")
    assert [spec.name for spec in base_methods(rows)] == ["kernel", "mle"]
