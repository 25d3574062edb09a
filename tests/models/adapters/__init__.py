"""Tests of models/adapters."""
