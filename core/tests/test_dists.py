"""The entry points of installed dists, beside what Python's own reader finds."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile

import pytest

from tpux.plugin.dists import EntryPoint, entry_points


def add(site, info, text, metadata="Metadata-Version: 2.1\nName: Foo.Bar\nVersion: 1.0\n\nName: not this\n"):
    directory = site / info
    directory.mkdir(parents=True)
    (directory / ("PKG-INFO" if info.endswith(".egg-info") else "METADATA")).write_text(metadata)
    if text is not None:
        (directory / "entry_points.txt").write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), str(tmp_path / "none")])
    return tmp_path


def by_python(group):
    found = importlib.metadata.entry_points(group=group)
    return sorted((entry.name, entry.value, entry.dist.name, entry.dist.version) for entry in found)


def by_tpux(group):
    return sorted((entry.name, entry.value, entry.dist, entry.version) for entry in entry_points(group))


@pytest.mark.parametrize("group", ["tpux", "tpux.commands", "console_scripts", "pytest11", "none"])
def test_this_installation(group):
    assert by_tpux(group) == by_python(group)


@pytest.mark.parametrize("info", ["foo_bar-1.0.dist-info", "foo_bar.egg-info", "Foo.Bar-1.0-py3.11.egg-info"])
@pytest.mark.parametrize(
    "text",
    [
        "[tpux]\nfoo = bar\n",
        "# comment\n[ other ]\nno = no\n\n[tpux]\n  foo=bar:baz.qux [extra]\n; = x\n[tpux.commands]\nfoo = bar:app\n",
        "foo = bar\n",
        "[tpux]\r\nfoo = bar = baz\r\n",
        None,
    ],
)
def test_what_dists_declare(site, info, text):
    add(site / "first", info, text)
    assert by_tpux("tpux") == by_python("tpux")


def test_the_first_copy_on_the_path_counts(site):
    add(site / "first", "foo_bar-2.0.dist-info", "[tpux]\nfoo = new\n")
    add(site / "second", "Foo.Bar-1.0.dist-info", "[tpux]\nfoo = old\nbar = old\n")
    assert entry_points("tpux") == [EntryPoint("foo", "new", "Foo.Bar", "1.0")]
    assert by_tpux("tpux") == by_python("tpux")


def test_a_damaged_first_copy_does_not_count(site):
    add(site / "first", "foo_bar-2.0.dist-info", "[tpux]\nfoo\n")
    add(site / "second", "Foo.Bar-1.0.dist-info", "[tpux]\nfoo = old\n")
    assert entry_points("tpux") == [EntryPoint("foo", "old", "Foo.Bar", "1.0")]


def test_a_copy_without_a_number_in_its_version_is_one(site):
    add(site / "first", "foo_bar-next.dist-info", "[tpux]\nfoo = new\n")
    add(site / "second", "Foo.Bar-1.0.dist-info", "[tpux]\nfoo = old\n")
    assert by_tpux("tpux") == by_python("tpux")


def test_an_egg_on_the_path(site, monkeypatch):
    add(site / "foo-1.0-py3.11.egg", "EGG-INFO", "[tpux]\nfoo = foo\n")
    (site / "foo-1.0-py3.11.egg/EGG-INFO/METADATA").rename(site / "foo-1.0-py3.11.egg/EGG-INFO/PKG-INFO")
    monkeypatch.setattr(sys, "path", [str(site / "foo-1.0-py3.11.egg")])
    assert entry_points("tpux") == [EntryPoint("foo", "foo", "Foo.Bar", "1.0")]
    assert by_tpux("tpux") == by_python("tpux")


def test_a_directory_in_the_place_of_the_file_is_no_error(site, caplog):
    add(site / "first", "foo_bar-1.0.dist-info", None)
    (site / "first/foo_bar-1.0.dist-info/entry_points.txt").mkdir()
    assert not entry_points("tpux")
    assert not caplog.text


def test_a_dist_without_metadata(site):
    directory = site / "first/foo-1.0.dist-info"
    directory.mkdir(parents=True)
    (directory / "entry_points.txt").write_text("[tpux]\nfoo = foo\n")
    assert entry_points("tpux") == [EntryPoint("foo", "foo", "unknown", "")]


@pytest.mark.parametrize("content", [b"[tpux]\nno equals sign\n", b"[tpux]\nfoo = \xff\n"])
def test_a_damaged_dist_is_named_and_hides_no_other(site, caplog, content):
    add(site / "first", "foo_bar-1.0.dist-info", "")
    (site / "first/foo_bar-1.0.dist-info/entry_points.txt").write_bytes(content)
    add(site / "second", "other-1.0.dist-info", "[tpux]\nother = other\n")
    assert [entry.name for entry in entry_points("tpux")] == ["other"]
    assert "cannot be read" in caplog.text
    assert "foo_bar" in caplog.text or "Foo.Bar" in caplog.text


def test_an_archive_on_the_path(site, monkeypatch):
    path = site / "plugins.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("foo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: foo\nVersion: 1.0\n")
        archive.writestr("foo-1.0.dist-info/entry_points.txt", "[tpux]\nfoo = foo\n")
    monkeypatch.setattr(sys, "path", [str(path)])
    assert entry_points("tpux") == [EntryPoint("foo", "foo", "foo", "1.0")]
