"""Tests of models/precision."""
