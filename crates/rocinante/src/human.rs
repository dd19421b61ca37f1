//! Figures for people. Every size that a user reads is formatted here, so all of them use the same units.

/// Bytes for people: `98.4 MB`, in powers of 1000 as file managers and download pages count.
pub fn human_bytes(n_bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n_bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n_bytes} B"),
        _ if value < 10.0 => format!("{value:.2} {}", units[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

/// A number of things: `1 request`, `2 requests`.
pub fn counted(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "token")), ["0 tokens", "1 token", "2 tokens"]);
    }

    #[test]
    fn counts_bytes_for_people() {
        let check = |n, expected: &str| assert_eq!(human_bytes(n), expected);
        check(0, "0 B");
        check(999, "999 B");
        check(1_500, "1.50 kB");
        check(98_362_432, "98.4 MB");
        check(999_700_000, "1.00 GB");
        check(1_117_320_736, "1.12 GB");
    }
}
