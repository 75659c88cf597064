"""Phobos: run a language model on your own machine from one command."""

__version__ = "0.1.0"
