//! Random names and seeds: a prefix that says what is named, and enough randomness that nobody guesses another's.

/// The prefix and 24 hexadecimal digits, as in `call_9f86d081884c7d659a2feaa0`.
pub fn new(prefix: &str) -> String {
    let mut bytes = [0; 12];
    fill(&mut bytes);
    format!("{prefix}{}", hex(&bytes))
}

/// Random bytes from the operating system.
pub fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system gives random bytes");
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A seed for a request that names none.
pub fn seed() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes) >> 1
}
