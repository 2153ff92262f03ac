"""The config section `gcsfuse`."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tpux import Section
from tpux.fields import Bucket, Duration

# "Bucket names" in the documentation of Cloud Storage; dots join up to 63 characters each.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def bucket_name(value: str) -> str:
    """Return the name of a bucket, also of its URL.

    Raises:
        ValueError: it is not one.
    """
    name = value.removeprefix("gs://").rstrip("/")
    if "/" in name:
        bucket, _, folder = name.partition("/")
        raise ValueError(f"for a directory of a bucket write bucket_name: {bucket}, options: [--only-dir={folder}]")
    if not _BUCKET.fullmatch(name):
        raise ValueError(f"{value!r} is not the name of a bucket: 3 or more of a-z, 0-9, '-', '_' and '.'")
    return name


def mount_path(value: str) -> str:
    """Return a directory on the workers: absolute, or relative to their home directory.

    Raises:
        ValueError: nothing can be mounted there.
    """
    path = posixpath.normpath(value.removeprefix("~/") or ".")
    if path in {"~", ".", ".."} or path.startswith("../") or not path.strip("/"):
        raise ValueError(f"{value!r} cannot be a mount: write a directory of its own, such as ~/gcs or /mnt/gcs")
    if path.startswith("~"):
        raise ValueError(f"{value!r} is another user's directory: write its absolute path")
    return path


def words(value: str) -> str:
    """Return a flag, which may be several words, such as `-o ro`.

    Raises:
        ValueError: a quotation mark is missing.
    """
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{value!r}: {error}") from error
    return value


# A line break ends the title of a step, and a null character ends an argument.
Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]+$")]
Size = Annotated[int, Field(ge=-1)]


def _without_nulls(data: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in data.items() if value is not None}


class CacheSection(Section):
    """gcsfuse's caches. A size of -1 is no limit, and 0 is no cache."""

    dir: Text | None = None
    """Directory on the worker for the file cache, such as a local disk or /dev/shm/gcsfuse."""
    metadata_ttl_secs: Size | None = None
    """Seconds for which metadata are cached; -1 for ever, which suits a bucket that does not change."""
    stat_cache_max_size_mb: Size | None = None
    """Size of the cache of metadata, in MiB."""
    type_cache_max_size_mb: Size | None = None
    """Size of the cache of what is a file and what a directory, in MiB."""
    file_cache_max_size_mb: Size | None = None
    """Size of the file cache, in MiB; without dir there is none."""
    cache_file_for_range_read: bool | None = None
    """Whether to cache a whole file when a program reads a part of it."""
    enable_parallel_downloads: bool | None = None
    """Whether to download large files into the cache in parallel."""
    prefix: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*\S[^\x00]*$")] | None = None
    """A shell script that each worker runs before this mount, such as one that makes the RAM disk of dir."""

    def flags(self) -> list[str]:
        """Return gcsfuse's flags for what is set, without that for the directory, whose home only a worker knows."""
        values = {
            "metadata-cache-ttl-secs": self.metadata_ttl_secs,
            "stat-cache-max-size-mb": self.stat_cache_max_size_mb,
            "type-cache-max-size-mb": self.type_cache_max_size_mb,
            "file-cache-max-size-mb": self.file_cache_max_size_mb,
            "file-cache-cache-file-for-range-read": self.cache_file_for_range_read,
            "file-cache-enable-parallel-downloads": self.enable_parallel_downloads,
        }
        return [f"--{flag}={str(value).lower()}" for flag, value in values.items() if value is not None]


class Mount(Section):
    """One bucket, mounted on each worker."""

    bucket_name: Annotated[str, AfterValidator(bucket_name)]
    """The bucket."""
    mount_path: Annotated[Text, AfterValidator(mount_path)]
    """Where the workers see it; a relative path starts at the home directory."""
    options: list[Annotated[Text, AfterValidator(words)]] = Field(default_factory=list)
    """Further flags of gcsfuse, such as --only-dir=datasets or "-o ro"; those of tpux come before them."""
    cache: CacheSection | None = None
    """Caches."""
    allow_cross_region: bool = False
    """Accept a bucket outside of the machines' region: slow, and each gigabyte that is read costs money."""

    @model_validator(mode="before")
    @classmethod
    def _without_unset(cls, data: object) -> object:
        """Treat null as "not set" also in `extra_mounts`, as core does in the section itself."""
        return _without_nulls(data) if isinstance(data, dict) else data


class GcsfuseSection(Mount):
    """Buckets of Cloud Storage, mounted on each worker."""

    extra_mounts: list[Mount] = Field(default_factory=list)
    """More mounts, each with its own options and caches; without a bucket_name of its own, of the same bucket."""
    lock_timeout: Duration = 600.0
    """How long the installation may wait for another program that holds the lock of apt or dpkg."""

    @model_validator(mode="before")
    @classmethod
    def _same_bucket(cls, data: object) -> object:
        """Give each extra mount that names no bucket the section's own, as jobman does."""
        mounts = data.get("extra_mounts") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(mounts, list) or "bucket_name" not in data:
            return data
        bucket = {"bucket_name": data["bucket_name"]}
        filled = [bucket | _without_nulls(mount) if isinstance(mount, dict) else mount for mount in mounts]
        return {**data, "extra_mounts": filled}

    @model_validator(mode="after")
    def _different_paths(self) -> GcsfuseSection:
        paths = [mount.mount_path for mount in self.mounts]
        if repeated := next((path for path in paths if paths.count(path) > 1), None):
            raise ValueError(f"two buckets have the mount_path {repeated}")
        return self

    @property
    def mounts(self) -> list[Mount]:
        """All mounts, in the order in which they are mounted."""
        return [self, *self.extra_mounts]

    def warnings(self) -> dict[str, str]:
        """Return the keys of caches that have no effect."""
        mounts = {"cache": self.cache, **{f"extra_mounts.{n}.cache": m.cache for n, m in enumerate(self.extra_mounts)}}
        caches = {key: cache for key, cache in mounts.items() if cache is not None}
        no_directory = "without cache.dir there is no file cache"
        return {
            f"{key}.file_cache_max_size_mb": no_directory
            for key, cache in caches.items()
            if cache.file_cache_max_size_mb not in {None, 0} and cache.dir is None
        }

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become arguments of gcsfuse, and scripts."""
        hint = "write it to a file with the module script, and name the file, as in --key-file=PATH"
        keys = ("options", "cache.prefix")
        return dict.fromkeys([*keys, *(f"extra_mounts.{key}" for key in keys)], hint)

    def never_finished(self) -> str:
        """Return that only failures of mounts are found."""
        return "gcsfuse reports only failures"

    def durable_paths(self) -> list[str]:
        """Return the directories whose content is in a bucket."""
        paths = [mount.mount_path for mount in self.mounts]
        return [spelling for path in paths for spelling in ([path] if path.startswith("/") else [f"~/{path}", path])]

    def buckets(self) -> list[Bucket]:
        """Return the buckets, for the preflight of an allocator."""
        keys = ["gcsfuse", *(f"gcsfuse.extra_mounts.{index}" for index in range(len(self.extra_mounts)))]
        return [
            Bucket(mount.bucket_name, f"{key}.bucket_name", mount.allow_cross_region)
            for key, mount in zip(keys, self.mounts, strict=True)
        ]
