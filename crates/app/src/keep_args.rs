//! The flags for contexts that are kept when the KV pool needs their memory.

use std::path::PathBuf;

use rocinante::Keep;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Kept contexts")]
pub struct KeepArgs {
    /// Keep contexts that do not fit the KV pool in up to this much host memory, such as 8G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_host: Option<u64>,
    /// Keep contexts in up to this much disk space, such as 50G, even across restarts with the same model
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub kv_disk: Option<u64>,
    /// Folder for --kv-disk [default: contexts in the user's cache folder]
    #[arg(long, value_name = "FOLDER", requires = "kv_disk")]
    pub kv_disk_path: Option<PathBuf>,
}

impl KeepArgs {
    /// What was typed.
    pub fn keep(&self, session: Option<PathBuf>) -> Keep {
        Keep {
            host_bytes: self.kv_host.unwrap_or(0),
            disk_bytes: self.kv_disk.unwrap_or(0),
            folder: self.kv_disk_path.clone(),
            session,
        }
    }
}

/// A number of bytes, with a unit of 1024 each: `512M`, `8G`, `8GiB`, `1.5T`.
fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "expected a size such as 512M, 8G or 1.5T".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1u64 << shift) as f64;
    if bytes.is_finite() && bytes < (1u64 << 60) as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4k", 4096), ("8G", 8 << 30), ("8GiB", 8 << 30), ("1.5T", 3 << 39)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "8 G", "1e3", "8X", "1.2.3G", "99999999T", "\u{661}G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
