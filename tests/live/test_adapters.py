"""Which adapters a server offers: as options name them, as operators change them, and as several
gateways of a machine share them."""

import asyncio
from pathlib import Path

import pytest

from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.live.adapters import AdapterRegistry, lora_modules, names_in
from tests.engine.tiny import tiny_spec
from tests.models.adapter_files import write_adapter


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    names = ("red", "green", "blue")
    for seed, name in enumerate(names):
        write_adapter(tmp_path / name, tiny_spec(), rank=2 << seed, seed=seed)
    return {name: tmp_path / name for name in names}


def registry(file: Path | None = None, most_rank: int = 64) -> AdapterRegistry:
    return AdapterRegistry(tiny_spec(), most_rank, ("tiny",), file)


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        (["red"], "expected name=path, got 'red'"),
        (["=path"], "expected name=path"),
        (["red="], "expected name=path"),
        (["a=x", "a=y"], "a is named twice"),
        (['{"name": "a"}'], "expected name=path"),
        (['{"name": 3, "path": "x"}'], "expected name=path"),
        (["{"], "expected name=path"),
    ],
)
def test_modules_are_names_and_folders(modules, problem):
    assert lora_modules(["a=/x=y", "b=~"]) == {"a": Path("/x=y"), "b": Path.home()}
    in_json = '{"name": "a", "path": "/x=y", "base_model_name": "m"}'
    assert lora_modules([in_json]) == {"a": Path("/x=y")}
    with pytest.raises(InvalidConfiguration, match=problem):
        lora_modules(modules)


async def test_what_is_loaded_can_be_asked_for_until_it_is_unloaded(folders):
    served = registry()
    served.begin({"red": folders["red"]})
    green = await served.load("green", str(folders["green"]))
    assert list(served.served) == ["red", "green"]
    assert served.named("green") == green
    assert green.adapter.path == str(folders["green"])
    await served.unload("red")
    assert served.named("red") is None
    with pytest.raises(InvalidRequest, match="no adapter that is loaded"):
        await served.unload("red")


def test_names_are_told_by_content(folders, tmp_path):
    file = tmp_path / "adapters.json"
    assert names_in(file) == {}
    served = registry(file)
    served.begin({"red": folders["red"], "green": folders["green"], "again": folders["red"]})
    digests = {name: each.adapter.digest for name, each in served.served.items()}
    assert digests["red"] == digests["again"]
    expected = {digests["red"]: "red", digests["green"]: "green"}
    assert served.names() == names_in(file) == expected
    file.write_text("{")
    assert names_in(file) == {}


@pytest.mark.parametrize(
    ("name", "path", "problem"),
    [
        ("tiny", "{red}", "'tiny' is the name of another model"),
        ("red", "{green}", "'red' is the name of another model"),
        ("", "{green}", "printable"),
        ("x\n", "{green}", "printable"),
        ("x", "green", "must be an absolute path"),
        ("x", "/nowhere", "cannot be loaded: adapter /nowhere is no directory"),
        ("x", "{blue}", "has rank 8, more than the 4"),
    ],
)
async def test_what_cannot_be_loaded_changes_nothing(folders, name, path, problem):
    served = registry(most_rank=4)
    served.begin({"red": folders["red"]})
    with pytest.raises(InvalidRequest, match=problem):
        await served.load(name, path.format(**folders))
    assert list(served.served) == ["red"]


async def test_of_two_that_load_one_name_together_one_does(folders):
    served = registry()
    loads = [served.load("x", str(folders[name])) for name in ("red", "green")]
    done = await asyncio.gather(*loads, return_exceptions=True)
    assert sum(isinstance(each, InvalidRequest) for each in done) == 1
    assert len(served.served) == 1


async def test_gateways_of_a_machine_serve_the_same(folders, tmp_path):
    file = tmp_path / "adapters.json"
    one, other = registry(file), registry(file)
    one.begin({"red": folders["red"]})
    # The second finds what the first has begun with, and reads no adapter.
    other.begin({"red": Path("/nowhere")})
    assert other.served == one.served
    await asyncio.gather(
        one.load("green", str(folders["green"])), other.load("blue", str(folders["blue"]))
    )
    assert set(one.served) == set(other.served) == {"red", "green", "blue"}
    await other.unload("red")
    assert one.named("red") is None
    with pytest.raises(InvalidRequest, match="another model"):
        await other.load("green", str(folders["red"]))
    # One that is started again begins where the others are.
    again = registry(file)
    again.begin({"red": folders["red"]})
    assert set(again.served) == {"green", "blue"}


async def test_a_damaged_file_leaves_what_is_known(folders, tmp_path, caplog):
    file = tmp_path / "adapters.json"
    served = registry(file)
    served.begin({"red": folders["red"]})
    file.write_text("{")
    assert list(served.served) == ["red"]
    assert "cannot be read" in caplog.text
