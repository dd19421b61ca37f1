//! `roci` as a child process, in a home of its own and away from the settings of the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A fresh home and cache folder for a program.
pub struct Roci {
    pub home: TempDir,
    program: PathBuf,
}

/// What a run left.
#[derive(Debug)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

/// A program that cargo built beside this test.
pub fn built_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let program = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join(name);
    assert!(program.exists(), "{} is not built; `cargo build --bin {name}` builds it", program.display());
    program
}

impl Default for Roci {
    fn default() -> Self {
        Self::new()
    }
}

impl Roci {
    /// The `roci` that was built with this test.
    pub fn new() -> Self {
        Self { home: TempDir::new().unwrap(), program: built_program("roci") }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn cache(&self) -> PathBuf {
        self.home.path().join("cache")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).current_dir(self.home.path());
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy().to_uppercase();
            if ["PIP_", "HF_"].iter().any(|start| name.starts_with(start)) || name.ends_with("_PROXY") {
                command.env_remove(key);
            }
        }
        command.env("HOME", self.home.path()).env("ROCI_HOME", self.cache()).env("COLUMNS", "100");
        command.env("XDG_CONFIG_HOME", self.home.path().join("config"));
        command
    }

    pub fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().unwrap(), self.home.path())
    }

    pub fn run_with_stdin(&self, args: &[&str], input: &[u8]) -> Outcome {
        let path = self.home.path().join("stdin");
        std::fs::write(&path, input).unwrap();
        let output = self.command(args).stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
        Outcome::of(output, self.home.path())
    }
}

impl Outcome {
    pub fn of(output: Output, home: &Path) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&*home.to_string_lossy(), "[HOME]");
        Self { stdout: text(&output.stdout), stderr: text(&output.stderr), code: output.status.code() }
    }

    /// All of it, for a snapshot.
    pub fn show(&self) -> String {
        format!("exit {:?}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}
