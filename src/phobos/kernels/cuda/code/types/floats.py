"""The types that are floats in the file and in memory: F32, F16, BF16."""

from __future__ import annotations

import numpy as np

from phobos.kernels.cuda.code.intrinsics import (
    device,
    half_to_float,
    load_f32,
    load_u16,
    read_two_words,
    read_words,
    word_as_float,
)
from phobos.kernels.cuda.code.types.words import FloatFormat


@device
def _four_f32(at):
    a, b, c, d = read_words(at)
    return word_as_float(a), word_as_float(b), word_as_float(c), word_as_float(d)


@device
def _four_f16(at):
    a, b = read_two_words(at)
    s = np.uint32(16)
    return half_to_float(a), half_to_float(a >> s), half_to_float(b), half_to_float(b >> s)


@device
def _one_f16(at):
    return half_to_float(load_u16(at))


@device
def _four_bf16(at):
    a, b = read_two_words(at)
    s, top = np.uint32(16), np.uint32(0xFFFF0000)
    return word_as_float(a << s), word_as_float(a & top), word_as_float(b << s), word_as_float(b & top)


@device
def _one_bf16(at):
    return word_as_float(load_u16(at) << np.uint32(16))


FORMATS = {
    "f32": FloatFormat(_four_f32, load_f32, 4),
    "f16": FloatFormat(_four_f16, _one_f16, 2),
    "bf16": FloatFormat(_four_bf16, _one_bf16, 2),
}
