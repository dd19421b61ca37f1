//! The crate's integration tests, one binary. What needs a GPU runs on each one that is there, and is
//! skipped with a reason where there is none; `ROCI_REQUIRE_GPU=1` turns that skip into a failure.

mod absent;
mod card;
mod headers;
