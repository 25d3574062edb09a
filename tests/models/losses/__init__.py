"""Tests of models/losses."""
