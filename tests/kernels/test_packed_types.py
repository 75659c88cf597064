"""The tables of packed types: every row has its file, on both devices, and a kernel's cached code follows that file."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from phobos.gguf.quants import TABLE, GGMLType
from phobos.kernels import code_cache
from phobos.kernels.cpu.code.formats import find_format, load_family
from phobos.kernels.cpu.code.types.record import Format
from phobos.kernels.cpu.packed_types import FAMILIES, PACKED


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_a_row_has_its_file(kind: GGMLType) -> None:
    packed = PACKED[kind]
    form = find_format(packed.name)
    if isinstance(form, Format):
        assert (form.kind.name, form.kind.record, form.kind.block) == (packed.name, packed.record, packed.block)
    assert form is not None
    assert packed.packer.removeprefix("pack:pack_") in load_family(packed.family).PACKERS
    assert packed.record_bytes >= 16 * TABLE[kind].n_bytes, "nothing of the file is lost"
    assert packed.values == TABLE[kind].block


def test_parts_lie_one_behind_the_other() -> None:
    q5_k = PACKED[GGMLType.Q5_K]
    assert q5_k.places("codes", "high", "scale", "minimum", "scales", "minimums") == (832, 320, 0, 32, 64, 192)
    assert q5_k.record_bytes == 16 * TABLE[GGMLType.Q5_K].n_bytes + 16 * 4  # six-bit scales as bytes
    with pytest.raises(ValueError, match="up"):
        q5_k.places("up")


@pytest.mark.parametrize(
    ("function", "families"),
    [
        ("matmul_q4_k", ("k_quants",)),
        ("gated_iq2_xs_silu", ("iq2",)),
        ("pack_iq2_s", ("iq2",)),
        ("pack_tq1_0", ("low_bits",)),
        ("embed_f16", ("floats",)),
        ("joined_q4_0_q6_k_8", ("k_quants", "plain")),
        ("rms_norm_quantize", ()),
    ],
)
def test_a_kernel_is_made_of_the_files_of_its_types(function: str, families: tuple[str, ...]) -> None:
    assert code_cache.find_families(function, FAMILIES) == families


def test_an_edit_of_a_type_concerns_its_kernels_only(tmp_path: Path) -> None:
    """Hashes of a copy of the sources, before and after an edit of one type's file."""
    source = Path(importlib.import_module("phobos.kernels.cpu").__path__[0])
    for path in source.rglob("*.py"):
        copy = tmp_path / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())

    def hash_of(*modules: str) -> str:
        return code_cache.hash_sources("phobos.kernels.cpu", tmp_path, modules)

    kernels = (["code.matmul", "code.types.k_quants"], ["code.matmul", "code.types.plain"], ["code.norm"])
    before = [hash_of(*modules) for modules in kernels]
    edited = tmp_path / "code/types/k_quants.py"
    edited.write_text(edited.read_text() + "\n# edited\n")
    assert [old == hash_of(*modules) for old, modules in zip(before, kernels, strict=True)] == [False, True, True]


def test_cards_have_a_file_for_every_row() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")
    from phobos.kernels.cuda.code.formats import FLOAT_FORMATS, FORMATS
    from phobos.kernels.cuda.packed_types import PACKED as CARD_TYPES
    from phobos.kernels.cuda.packing import find_packer

    assert set(CARD_TYPES) == set(PACKED)
    names = {packed.name for packed in CARD_TYPES.values()}
    assert names == {form.kind.name for form in FORMATS.values()} | {kind.name.lower() for kind in FLOAT_FORMATS}
    for kind in CARD_TYPES:
        assert callable(find_packer(kind)), kind
