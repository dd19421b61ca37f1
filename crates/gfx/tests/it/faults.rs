//! Faults on demand, as a program on AMD's runtime meets them: a hang, a page fault, a full card. After each, a new
//! process works.

use std::time::{Duration, Instant};

use crate::tools::{smoke, text};

/// The product's promise for a new process after a fault.
const RECOVERY: Duration = Duration::from_secs(10);

/// A right run, within the time a restarted worker has. The machine may be busy with other tests, so the best of three
/// counts.
fn works_again() {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        let Some(out) = smoke(&[("SMOKE_DEADLINE_MS", "60000")]) else { return };
        assert!(out.status.success() && text(&out).contains("ok\n"), "{}", text(&out));
        fastest = fastest.min(began.elapsed());
        if fastest < RECOVERY {
            return;
        }
    }
    panic!("a new process took {fastest:?}");
}

#[test]
fn a_hang_is_not_ready_at_the_deadline_and_a_new_process_works() {
    let Some(out) = smoke(&[("GFX_HANG_AT", "1"), ("SMOKE_DEADLINE_MS", "300")]) else { return };
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("dispatch 1 (`rmsnorm`) hangs, as GFX_HANG_AT asks"), "{said}");
    assert!(said.contains("hipErrorNotReady after 300 ms"), "{said}");
    assert!(!said.contains("rmsnorm: worst"), "a result came from a hung kernel: {said}");
    works_again();
}

#[test]
fn a_hang_at_a_dispatch_that_never_comes_changes_nothing() {
    let Some(out) = smoke(&[("GFX_HANG_AT", "1000"), ("SMOKE_DEADLINE_MS", "60000")]) else { return };
    assert!(out.status.success() && text(&out).contains("ok\n"), "no dispatch has that number: {}", text(&out));
}

#[test]
fn a_page_fault_ends_the_process_with_the_kernels_name_and_a_new_process_works() {
    let Some(out) = smoke(&[("GFX_FAULT_AT", "2")]) else { return };
    assert!(!out.status.success());
    assert!(text(&out).contains("kernel `add`: memory access fault at dispatch 2"), "{}", text(&out));
    works_again();
}

#[test]
fn a_failed_allocation_is_hips_own_error_and_a_new_process_works() {
    let Some(out) = smoke(&[("GFX_FAIL_ALLOC", "1@1000000000")]) else { return };
    assert!(out.status.success(), "no allocation is that large: {}", text(&out));
    let Some(out) = smoke(&[("GFX_FAIL_ALLOC", "1@12345678"), ("SMOKE_ALLOC", "12345678")]) else { return };
    assert!(!out.status.success());
    assert!(text(&out).contains("hipMalloc: 2 hipErrorOutOfMemory"), "{}", text(&out));
    works_again();
}

/// A request that cannot be read is no request for nothing.
#[test]
fn a_misspelt_request_is_refused() {
    for (name, value) in [("GFX_SEED", "abc"), ("GFX_HANG_AT", "0"), ("GFX_FAIL_ALLOC", "many"), ("GFX_THREADS", "-1")]
    {
        let Some(out) = smoke(&[(name, value)]) else { return };
        let said = text(&out);
        assert!(!out.status.success() && said.contains(&format!("environment variable {name}")), "{said}");
    }
}
