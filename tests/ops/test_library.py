"""The native library is that of the sources beside it, or torch serves and says why."""

import shutil

import pytest

from lullm.errors import ConfigError
from lullm.ops.cpu import library
from lullm.ops.selection import TORCH_CPU_OPS, select_ops

ASKED_ONCE = (library.load_library, library.absence, library.mismatch)


@pytest.fixture(autouse=True)
def asked_again():
    for function in ASKED_ONCE:
        function.cache_clear()
    yield
    for function in ASKED_ONCE:
        function.cache_clear()


@pytest.fixture
def other_sources(tmp_path, monkeypatch):
    """The sources that stand beside the library, one byte more than it was built from."""
    if library.absence() is not None:
        pytest.skip(f"no native ops: {library.absence()}")
    library.absence.cache_clear(), library.mismatch.cache_clear()
    sources = shutil.copytree(library._SOURCES, tmp_path / "csrc")
    assert library.source_digest(sources) == library.source_digest(library._SOURCES)
    with (sources / "attention" / "rows.h").open("a") as file:
        file.write("\n")
    monkeypatch.setattr(library, "_SOURCES", sources)
    monkeypatch.delenv(library.ISA_VARIABLE, raising=False)
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    return monkeypatch


def test_a_library_of_other_sources_is_left_out_with_one_line(other_sources, caplog):
    caplog.set_level("WARNING", "lullm")
    assert select_ops("cpu") is TORCH_CPU_OPS
    assert select_ops("cpu") is TORCH_CPU_OPS
    (line,) = (record.getMessage() for record in caplog.records)
    assert "built from other sources" in line and "build it again" in line
    assert "built from other sources" in str(library.absence())


@pytest.mark.parametrize("variable", [library.ISA_VARIABLE, library.LIBRARY_VARIABLE])
def test_one_that_is_asked_for_by_name_is_an_error(other_sources, variable):
    value = "avx2" if variable == library.ISA_VARIABLE else str(library._path())
    other_sources.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"built from other sources.*{variable} ask"):
        select_ops("cpu")


def test_switched_off_it_is_not_looked_at(other_sources, caplog):
    other_sources.setenv(library.ISA_VARIABLE, "none")
    assert select_ops("cpu") is TORCH_CPU_OPS
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_an_installed_package_compares_the_number_only(other_sources, tmp_path):
    other_sources.setattr(library, "_SOURCES", tmp_path / "nowhere")
    assert library.absence() is None
    library.absence.cache_clear(), library.mismatch.cache_clear()
    other_sources.setattr(library, "_ABI_VERSION", library._ABI_VERSION + 1)
    assert "another version of lullm" in str(library.absence())


def test_a_library_of_before_the_digest(other_sources, tmp_path):
    """Any shared library without the functions."""
    import _ctypes

    other_sources.setenv(library.LIBRARY_VARIABLE, _ctypes.__file__)
    assert "another version of lullm" in str(library.absence())
