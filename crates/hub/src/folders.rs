//! Where things are kept, by XDG's rules; `ROCI_HOME` moves all of it.
//!
//!   config   ~/.config/roci         config.toml
//!   data     ~/.local/share/roci    models, names, unfinished downloads
//!   cache    ~/.cache/roci          compiled kernels: may be deleted at any time
//!   state    ~/.local/state/roci    the history of the chat
//!
//! Earlier versions kept models in `~/.cache/roci` and kernels in `~/.cache/rocinante`. Such models are still used from
//! there ([`Folders::older_data`]); [`Folders::adopt`] moves the rest.

use crate::hint::HintExt;
use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};

/// The four folders. None of them need exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Folders {
    pub config: PathBuf,
    pub data: PathBuf,
    pub cache: PathBuf,
    pub state: PathBuf,
    /// Where earlier versions kept models.
    pub older_data: Option<PathBuf>,
    /// Where they kept compiled kernels.
    older_kernels: Option<PathBuf>,
}

impl Folders {
    pub fn from_env() -> Result<Self> {
        let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self::new(&set)
    }

    /// By an environment that the caller gives.
    pub fn new(set: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Self> {
        if let Some(home) = set("ROCI_HOME") {
            return Ok(Self {
                config: home.clone(),
                cache: home.join("cache"),
                state: home.join("state"),
                data: home,
                older_data: None,
                older_kernels: None,
            });
        }
        let home = set("HOME");
        // XDG: a relative path is to be ignored.
        let base = |variable: &str, below_home: &str| {
            let named = set(variable).filter(|path| path.is_absolute());
            named.or_else(|| home.as_ref().map(|home| home.join(below_home)))
        };
        let all = (
            base("XDG_CONFIG_HOME", ".config"),
            base("XDG_DATA_HOME", ".local/share"),
            base("XDG_CACHE_HOME", ".cache"),
            base("XDG_STATE_HOME", ".local/state"),
        );
        let (Some(config), Some(data), Some(cache), Some(state)) = all else {
            return Err(anyhow!("no folder for models: HOME is not set")).hint("set ROCI_HOME to a folder for models");
        };
        Ok(Self {
            config: config.join("roci"),
            data: data.join("roci"),
            state: state.join("roci"),
            older_data: Some(cache.join("roci")),
            older_kernels: Some(cache.join("rocinante").join("kernels")),
            cache: cache.join("roci"),
        })
    }

    pub fn config_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    pub fn history(&self) -> PathBuf {
        self.state.join("history")
    }

    /// Moves what earlier versions left elsewhere, except models; a sentence for each thing that was moved.
    pub fn adopt(&self) -> Vec<String> {
        let history = self.older_data.as_ref().map(|older| (older.join("history"), self.history()));
        let kernels = self.older_kernels.clone().map(|older| (older, self.cache.join("kernels")));
        [history, kernels].into_iter().flatten().filter_map(|(from, to)| adopt(&from, &to)).collect()
    }
}

/// Renames, unless there is something already; across file systems the old one is left alone.
fn adopt(from: &Path, to: &Path) -> Option<String> {
    if !from.exists() || to.exists() {
        return None;
    }
    std::fs::create_dir_all(to.parent()?).ok()?;
    std::fs::rename(from, to).ok()?;
    // Empty by now, or not ours.
    let _ = std::fs::remove_dir(from.parent()?);
    Some(format!("moved {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(env: &[(&str, &str)]) -> Result<Folders> {
        Folders::new(&|key| env.iter().find(|(name, _)| *name == key).map(|(_, value)| PathBuf::from(value)))
    }

    #[test]
    fn follows_xdg_and_one_variable_moves_all() {
        let plain = folders(&[("HOME", "/h")]).unwrap();
        assert_eq!(plain.config_file(), Path::new("/h/.config/roci/config.toml"));
        assert_eq!(plain.data, Path::new("/h/.local/share/roci"));
        assert_eq!(plain.cache, Path::new("/h/.cache/roci"));
        assert_eq!(plain.history(), Path::new("/h/.local/state/roci/history"));
        let xdg = folders(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d"), ("XDG_STATE_HOME", "relative")]).unwrap();
        assert_eq!(
            (xdg.data.as_path(), xdg.state.as_path()),
            (Path::new("/d/roci"), Path::new("/h/.local/state/roci"))
        );
        let moved = folders(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d"), ("ROCI_HOME", "/r")]).unwrap();
        for folder in [&moved.config, &moved.data, &moved.cache, &moved.state] {
            assert!(folder.starts_with("/r"), "{}", folder.display());
        }
        assert!(folders(&[]).is_err());
    }

    #[test]
    fn what_earlier_versions_left_is_moved_once() {
        let home = tempfile::tempdir().unwrap();
        let folders = folders(&[("HOME", home.path().to_str().unwrap())]).unwrap();
        std::fs::create_dir_all(home.path().join(".cache/rocinante/kernels")).unwrap();
        std::fs::create_dir_all(home.path().join(".cache/roci/models/m")).unwrap();
        std::fs::write(home.path().join(".cache/rocinante/kernels/a.co"), "k").unwrap();
        std::fs::write(home.path().join(".cache/roci/history"), "hello").unwrap();
        assert_eq!(folders.adopt().len(), 2);
        assert_eq!(std::fs::read_to_string(folders.history()).unwrap(), "hello");
        assert!(folders.cache.join("kernels/a.co").is_file() && !home.path().join(".cache/rocinante").exists());
        assert!(home.path().join(".cache/roci/models/m").is_dir(), "models are used where they are");
        assert!(folders.adopt().is_empty());
    }
}
