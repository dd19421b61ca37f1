//! Names for what clients get back: a prefix that says what it is, and enough randomness that nobody guesses another's.

/// `chatcmpl-` and 24 more characters.
pub fn new(prefix: &str) -> String {
    let mut bytes = [0; 12];
    fill(&mut bytes);
    format!("{prefix}{}", hex(&bytes))
}

/// Random bytes from the system.
pub fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system gives random bytes");
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A seed that nobody asked for.
pub fn seed() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes) >> 1
}
