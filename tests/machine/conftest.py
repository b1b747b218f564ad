"""A tree that imitates the files of a system."""

import pytest


@pytest.fixture
def write(tmp_path):
    """`write(path, text)`: a file of the tree; returns the root."""

    def write_file(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return tmp_path

    return write_file
