//! Guest tests.
