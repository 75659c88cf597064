"""Importing the template and tokenizer modules stays cheap: their libraries come with the first model."""

import subprocess
import sys


def test_no_heavy_library_before_a_model_is_loaded() -> None:
    code = (
        "import sys, phobos.chat.template, phobos.gguf.tokenizer\n"
        "print(sorted({'jinja2', 'tokenizers', 'sentencepiece', 'numpy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
