"""Options from file and flags: one table, one clear line for every bad value."""

import pytest

from tandem.config.options import ServeOptions, parse_bytes, read_options
from tandem.facts.errors import InvalidConfiguration


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 9000\nmax_num_seqs: 7\nserved-model-name: [a, b]\napi-key: [secret]\n")
    options = read_options(file, {"port": 9001})
    assert options.port == 9001
    assert options.max_num_seqs == 7
    assert options.served_model_name == ("a", "b")
    assert options.block_size == ServeOptions().block_size


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, ["port", "65535", "70000"]),
        ({"block_size": 0}, ["block-size", ">= 1"]),
        ({"dtype": "fp32"}, ["dtype", "fp32"]),
        ({"gpu_memory_utilization": 1.5}, ["gpu-memory-utilization", "1.5"]),
        ({"steps_in_flight": 2}, ["steps-in-flight"]),
        ({"max_model_length": 10}, ["unknown option max-model-length", "max-model-len"]),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(flags, words):
    with pytest.raises(InvalidConfiguration) as refusal:
        read_options(None, flags)
    text = str(refusal.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port: [", "not valid YAML"),
        ("- port\n- 80\n", "expected option names"),
        ("port: eighty\n", "port: expected `int`"),
        ("prot: 80\n", "did you mean port"),
        ("api-key: secret\n", "api-key: expected a list"),
        ("block-size: 8\nblock_size: 16\n", "twice"),
        ("\x00", "not valid YAML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, content, words):
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    with pytest.raises(InvalidConfiguration) as refusal:
        read_options(file, {})
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidConfiguration, match="cannot read"):
        read_options(tmp_path / "none.yaml", {})


def test_a_wrong_key_is_not_printed(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: [123456789]\n")
    with pytest.raises(InvalidConfiguration) as refusal:
        read_options(file, {})
    assert "123456789" not in str(refusal.value)


def test_a_plain_number_of_bytes_is_a_size_in_a_file_too(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("kv-cache-memory: 1073741824\n")
    assert read_options(file, {}).kv_cache_memory == "1073741824"


def test_an_empty_file_changes_nothing(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("# nothing\n")
    assert read_options(file, {}) == ServeOptions()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2GB", 2 * 10**9)],
)
def test_sizes(text, size):
    assert parse_bytes(text, "kv-cache-memory") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 parsecs", "nan", "inf", "1e400MiB", "4QB"])
def test_bad_sizes_name_the_option(text):
    with pytest.raises(InvalidConfiguration, match="kv-cache-memory: expected a size"):
        parse_bytes(text, "kv-cache-memory")


@pytest.mark.parametrize("prefix", ["", "2nd", "vllm:", "v llm", "läuft", "a" * 65, "a\n"])
def test_a_prefix_of_metrics_is_a_name(prefix):
    assert read_options(None, {"metrics_prefix": "vllm"}).metrics_prefix == "vllm"
    with pytest.raises(InvalidConfiguration, match=r"^metrics-prefix: "):
        read_options(None, {"metrics_prefix": prefix})
