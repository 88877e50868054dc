"""The version, where every package can read it without importing upwards."""

VERSION = "0.2.0"
