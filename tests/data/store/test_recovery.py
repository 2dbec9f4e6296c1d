"""Whatever is left of a store when its writer dies, the next writer goes on from the last commit."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from polysem.data.collection import Skipped
from polysem.data.store import FeatureManifest, FeatureStore, StoreEntry, StoreError, StoreWriter

MANIFEST = FeatureManifest("tiny", "abc", 4, "float32")
BATCHES = [
    [StoreEntry(f"{batch}-{i}", np.full((batch + i + 1, 4), 10 * batch + i, np.float32)) for i in range(2)]
    for batch in range(4)
]
SHARD_BYTES = 150


def write(folder: Path, batches: list[list[StoreEntry]]) -> None:
    """Whatever of the batches is not there yet."""
    with StoreWriter(folder, MANIFEST, shard_bytes=SHARD_BYTES) as writer:
        for batch in batches:
            if batch[0].id not in writer.done:
                writer.add(batch, [Skipped(f"bad{batch[0].id}", "torn")])
                writer.commit()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    write(folder, BATCHES)
    assert len(list(folder.glob("shard-*"))) > 1
    return folder


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_reads_as_its_last_commit_and_is_completed_to_the_same_bytes(
    whole: Path, tmp_path: Path
) -> None:
    journal = (whole / "journal-000.jsonl").read_bytes()
    for cut in range(len(journal)):
        folder = tmp_path / "store"
        shutil.copytree(whole, folder)
        (folder / "journal-000.jsonl").write_bytes(journal[:cut])
        committed = journal[:cut].count(b"\n")
        store = FeatureStore.open(folder)
        store.verify()
        assert store.ids == [entry.id for batch in BATCHES[:committed] for entry in batch]
        assert len(store.skipped) == committed
        if cut % 7 == 0 or journal[cut : cut + 1] == b"\n":  # each cut reads; the rest of the work on a seventh
            write(folder, BATCHES)
            assert contents(folder) == contents(whole)
        shutil.rmtree(folder)


def test_a_journal_whose_tail_was_never_written_by_the_disk_is_cut_back(whole: Path, tmp_path: Path) -> None:
    # After a power cut a file may have its new length but zeros for content.
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    path = folder / "journal-000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + bytes(len(lines[-1])))
    assert len(FeatureStore.open(folder)) == 6
    write(folder, BATCHES)
    assert contents(folder) == contents(whole)


def test_values_that_no_line_speaks_of_are_written_over(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    write(folder, BATCHES[:1])
    with (folder / "shard-000-00000.bin").open("ab") as file:
        file.write(b"torn" * 33)
    (folder / "shard-000-00001.bin").write_bytes(b"torn")
    (folder / "shard-000-00007.bin").write_bytes(b"torn")
    write(folder, BATCHES)
    assert contents(folder) == contents(whole)


def test_what_was_added_but_not_committed_is_gone_with_its_writer(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, MANIFEST)
    writer.add(BATCHES[0])
    writer.commit()
    writer.add(BATCHES[1])
    assert len(FeatureStore.open(tmp_path)) == 2
    writer.close()
    with StoreWriter(tmp_path, MANIFEST) as again:
        assert again.done == {"0-0", "0-1"}


def test_what_was_added_before_an_error_counts(tmp_path: Path) -> None:
    def fails_later() -> None:
        with StoreWriter(tmp_path, MANIFEST) as writer:
            writer.add(BATCHES[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails_later()
    assert len(FeatureStore.open(tmp_path)) == 2


def test_damage_in_the_middle_of_a_journal_is_no_torn_line_and_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    path = folder / "journal-000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"start":0', b'"start":4', 1))
    for reopen in (lambda: FeatureStore.open(folder), lambda: StoreWriter(folder, MANIFEST)):
        with pytest.raises(StoreError, match="damaged at byte 0, before its end"):
            reopen()


def test_an_item_extracted_after_it_was_skipped_is_no_longer_missing(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, MANIFEST) as writer:
        writer.add([], [Skipped("0-0", "torn"), Skipped("other", "torn")])
        assert writer.skipped == {"0-0", "other"}
        writer.add(BATCHES[0])
    assert [skip.what for skip in FeatureStore.open(tmp_path).skipped] == ["other"]
