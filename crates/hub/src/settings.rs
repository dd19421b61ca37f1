//! How this machine reaches the package registries and the hub: the settings pip, npm and the hub's own tools
//! read, because people behind a mirror or a proxy have already made them. Environment before files, the
//! user's file before the system's. Proxy variables (`HTTPS_PROXY`, `NO_PROXY`) are read by the HTTP client itself, system
//! certificates by `http.rs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

const DEFAULT_INDEX: &str = "https://pypi.org/simple";
const DEFAULT_NPM: &str = "https://registry.npmjs.org";
const DEFAULT_HUB: &str = "https://huggingface.co";

/// Where to look and whom to trust.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Simple-index addresses in order, without a trailing slash.
    pub indexes: Vec<String>,
    /// Certificate bundles (PEM) besides the system's.
    pub certs: Vec<PathBuf>,
    pub proxy: Option<String>,
    /// npm's registry, without a trailing slash.
    pub npm: String,
    /// The hub's address, without a trailing slash.
    pub hub: String,
    pub hub_token: Option<String>,
}

impl Settings {
    pub fn from_env() -> Self {
        let env = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let mut conf = HashMap::new();
        for path in config_files(&env) {
            if let Ok(text) = std::fs::read_to_string(&path) {
                conf.extend(parse_config(&text));
            }
        }
        let mut settings = Self::new(&env, &conf);
        if env("NPM_CONFIG_REGISTRY").or_else(|| env("npm_config_registry")).is_none()
            && let Some(text) = npm_config(&env).and_then(|path| std::fs::read_to_string(path).ok())
            && let Some(registry) = npm_registry(&text)
        {
            settings.npm = registry;
        }
        // The token that the hub's own login command left.
        settings.hub_token = settings.hub_token.or_else(|| hf_hub::Cache::from_env().token());
        settings
    }

    fn new(env: &dyn Fn(&str) -> Option<String>, conf: &HashMap<String, String>) -> Self {
        let setting = |key: &str| {
            let variable = format!("PIP_{}", key.to_uppercase().replace('-', "_"));
            env(&variable).or_else(|| conf.get(key).cloned())
        };
        let mut indexes = vec![setting("index-url").unwrap_or_else(|| DEFAULT_INDEX.to_owned())];
        if let Some(more) = setting("extra-index-url") {
            indexes.extend(more.split_whitespace().map(str::to_owned));
        }
        for index in &mut indexes {
            index.truncate(index.trim_end_matches('/').len());
        }
        let certs = [setting("cert"), env("REQUESTS_CA_BUNDLE"), env("CURL_CA_BUNDLE")];
        let mut certs: Vec<PathBuf> = certs.into_iter().flatten().map(PathBuf::from).collect();
        certs.dedup();
        let hub = env("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_HUB.to_owned());
        let hub = hub.trim_end_matches('/').to_owned();
        let npm = env("NPM_CONFIG_REGISTRY").or_else(|| env("npm_config_registry"));
        let npm = npm.as_deref().unwrap_or(DEFAULT_NPM).trim_end_matches('/').to_owned();
        Self { indexes, certs, proxy: setting("proxy"), npm, hub, hub_token: env("HF_TOKEN") }
    }
}

/// pip's configuration files, lowest precedence first.
fn config_files(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/xdg/pip/pip.conf"), PathBuf::from("/etc/pip.conf")];
    let home = env("HOME").map(PathBuf::from);
    if let Some(home) = &home {
        files.push(home.join(".pip/pip.conf"));
    }
    let config = env("XDG_CONFIG_HOME").map(PathBuf::from).or(home.map(|home| home.join(".config")));
    files.extend(config.map(|config| config.join("pip/pip.conf")));
    files.extend(env("VIRTUAL_ENV").map(|venv| Path::new(&venv).join("pip.conf")));
    match env("PIP_CONFIG_FILE") {
        // pip's own way to say: read no file at all.
        Some(file) if file == "/dev/null" => files.clear(),
        Some(file) => files.push(PathBuf::from(file)),
        None => {}
    }
    files
}

/// npm's configuration file of this user.
fn npm_config(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let named = env("NPM_CONFIG_USERCONFIG").or_else(|| env("npm_config_userconfig"));
    named.map(PathBuf::from).or_else(|| env("HOME").map(|home| Path::new(&home).join(".npmrc")))
}

/// The line `registry=ADDRESS` of an npm configuration; lines for one scope (`@scope:registry`) are others.
fn npm_registry(text: &str) -> Option<String> {
    let mut lines = text.lines().rev().filter_map(|line| line.split_once('='));
    let found = lines.find(|(key, _)| key.trim() == "registry")?.1.trim();
    let found = found.trim_matches('"').trim_end_matches('/');
    (!found.is_empty()).then(|| found.to_owned())
}

/// The keys of the sections that matter to a download (`[global]`, then `[download]` over it).
/// Values may go on over indented lines, as in Python's configparser.
fn parse_config(text: &str) -> HashMap<String, String> {
    let mut sections: HashMap<String, HashMap<String, String>> = HashMap::new();
    let mut section = String::new();
    let mut last_key: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        let is_continued = line.starts_with([' ', '\t']);
        let keys = sections.entry(section.clone()).or_default();
        if is_continued && let Some(value) = last_key.as_ref().and_then(|key| keys.get_mut(key)) {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(trimmed);
        } else if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
            last_key = None;
        } else if let Some((key, value)) = trimmed.split_once(['=', ':']) {
            let key = key.trim().to_lowercase().replace('_', "-");
            keys.insert(key.clone(), value.trim().to_owned());
            last_key = Some(key);
        }
    }
    let mut merged = sections.remove("global").unwrap_or_default();
    merged.extend(sections.remove("download").unwrap_or_default());
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(env: &[(&str, &str)], conf: &str) -> Settings {
        let env: HashMap<String, String> = env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        Settings::new(&|key| env.get(key).cloned(), &parse_config(conf))
    }

    #[test]
    fn defaults_to_the_public_registry() {
        let found = settings(&[], "");
        let indexes = vec![DEFAULT_INDEX.into()];
        let (npm, hub) = (DEFAULT_NPM.into(), DEFAULT_HUB.into());
        assert_eq!(found, Settings { indexes, certs: vec![], proxy: None, npm, hub, hub_token: None });
    }

    #[test]
    fn reads_a_configuration_file() {
        let conf = "# ours\n[global]\nindex-url = https://mirror.example/simple/\nextra-index-url =\n    \
                    https://a.example/simple\n    https://b.example/simple/\ncert: /ca.pem\n\
                    [install]\nproxy = http://not-for-downloads\n[download]\nproxy = http://proxy:3128\n";
        let found = settings(&[], conf);
        let indexes = ["https://mirror.example/simple", "https://a.example/simple", "https://b.example/simple"];
        assert_eq!(found.indexes, indexes);
        assert_eq!(found.certs, [PathBuf::from("/ca.pem")]);
        assert_eq!(found.proxy.as_deref(), Some("http://proxy:3128"));
    }

    #[test]
    fn npms_registry_by_its_own_settings() {
        let conf = "@scope:registry=https://other.example/\nregistry = \"https://npm.example/root/\"\nfund=false\n";
        assert_eq!(npm_registry(conf).as_deref(), Some("https://npm.example/root"));
        assert_eq!(npm_registry("registry=\n"), None);
        assert_eq!(settings(&[("npm_config_registry", "https://env.example/")], "").npm, "https://env.example");
    }

    #[test]
    fn environment_wins_over_files() {
        let conf = "[global]\nindex_url = https://file.example/simple\n";
        let found = settings(&[("PIP_INDEX_URL", "https://env.example/simple"), ("PIP_CERT", "/e.pem")], conf);
        assert_eq!(found.indexes, ["https://env.example/simple"]);
        assert_eq!(found.certs, [PathBuf::from("/e.pem")]);
    }
}
