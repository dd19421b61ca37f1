//! Which of a repository's files is downloaded: the requested quantization, or the usual one that fits this machine's
//! memory. Looks only at file names and sizes.

use crate::hint::HintExt;
use anyhow::{Result, anyhow};
use rocinante::human_bytes;
use std::fmt;

/// Memory that a model may fill.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryBudget {
    pub n_bytes: u64,
    /// Whose memory it is, for sentences: `this machine`, `NVIDIA H200`.
    pub of: String,
}

impl MemoryBudget {
    /// That of the best GPU, else what is available of main memory. Asks drivers, which takes a moment.
    pub fn here() -> Option<Self> {
        rocinante::model_memory().map(|(n_bytes, of)| Self { n_bytes, of })
    }

    /// Whether weights of this size leave room for a context and for others.
    pub fn holds(&self, n_bytes: u64) -> bool {
        n_bytes + n_bytes / 10 + (256 << 20) <= self.n_bytes
    }
}

/// Types in order of preference for a model of usual size: four bits, then fewer, then more. The first that the
/// repository has and memory holds is taken, else the smallest. A type that is not listed must be named by the user.
const USUAL: &[&str] = &[
    "Q4_K_M", "MXFP4", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_XS", "Q3_K_M", "Q3_K_S", "IQ3_XXS", "Q2_K", "IQ2_XXS", "Q5_K_M",
    "Q6_K", "Q8_0", "F16", "BF16", "F32",
];
/// The same for a model that four bits hurt: it is small enough for eight.
const SMALL: &[&str] = &["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "F16", "BF16", "F32", "Q2_K"];
/// Billions of parameters below which a model is small.
const SMALL_BILLIONS: f64 = 2.0;

/// What follows the number of bits in the name of a quantization.
const SUFFIXES: &[&str] =
    &["0", "1", "K", "K_S", "K_M", "K_L", "K_XL", "XXS", "XS", "S", "M", "NL", "0_4_4", "0_4_8", "0_8_8", "0_L"];
/// Types that are not named by their number of bits.
const UNPACKED: &[&str] = &["F16", "BF16", "F32", "FP16", "FP32", "FP8", "MXFP4", "MXFP4_MOE", "NVFP4"];

/// Whether a word is built as the names of quantizations are: `Q4_K_M`, `IQ2_XXS`, `UD-Q4_K_XL`, `BF16`.
pub fn is_quantization(word: &str) -> bool {
    let word = word.to_uppercase();
    let word = word.strip_prefix("UD-").unwrap_or(&word);
    let packed =
        ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start)).and_then(|rest| rest.split_once('_'));
    let is_packed =
        packed.is_some_and(|(bits, suffix)| matches!(bits.parse(), Ok(1..=8)) && SUFFIXES.contains(&suffix));
    is_packed || UNPACKED.contains(&word)
}

/// A repository has files, but not the one that was asked for.
#[derive(Debug)]
pub struct NoSuchFile {
    pub wanted: String,
    pub n_matching: usize,
    /// The quantizations that it has, as they are typed after a name.
    pub there: Vec<String>,
}

impl fmt::Display for NoSuchFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has {} GGUF files that match `{}`", self.n_matching, self.wanted)
    }
}

impl std::error::Error for NoSuchFile {}

/// The quantization that a file's name ends with, in small letters.
fn quantization_of(name: &str) -> Option<String> {
    let stem = name.rsplit('/').next()?.strip_suffix(".gguf")?;
    let stem = part_of(name).map_or(stem, |(stem, ..)| stem.rsplit('/').next().unwrap_or(stem));
    let start = stem.rfind(['-', '.'])?;
    // `UD-` belongs to what follows it.
    let start = stem[..start].strip_suffix("-UD").map_or(start, str::len);
    Some(stem[start + 1..].to_lowercase()).filter(|word| is_quantization(word))
}

/// One model among a repository's files: one file, or all parts of one that was split.
#[derive(Debug, Clone, PartialEq)]
pub struct FileCandidate {
    /// In order; the first is the one that is opened.
    pub files: Vec<String>,
    /// Of all of them, where the hub tells it.
    pub n_bytes: Option<u64>,
    /// Whether every part is listed.
    pub is_whole: bool,
}

impl FileCandidate {
    pub fn first(&self) -> &str {
        &self.files[0]
    }

    fn has(&self, tag: &str) -> bool {
        has_tag(self.first(), tag)
    }
}

/// What was chosen, and a sentence on why.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenFile {
    pub candidate: FileCandidate,
    pub why: Option<String>,
}

/// The models among files with their sizes, by name.
pub fn candidates(files: &[(String, Option<u64>)]) -> Vec<FileCandidate> {
    let is_model = |name: &str| {
        let name = name.to_lowercase();
        name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
    };
    let mut files: Vec<&(String, Option<u64>)> = files.iter().filter(|(name, _)| is_model(name)).collect();
    files.sort();
    let mut found: Vec<FileCandidate> = Vec::new();
    let mut last_stem = None;
    for (name, n_bytes) in files {
        let part = part_of(name);
        let stem = part.as_ref().map(|(stem, ..)| (*stem).to_owned());
        match found.last_mut().filter(|_| stem.is_some() && stem == last_stem) {
            Some(last) => {
                last.files.push(name.clone());
                last.n_bytes = last.n_bytes.zip(*n_bytes).map(|(a, b)| a + b);
                last.is_whole = part.is_some_and(|(_, _, n_parts)| last.files.len() == n_parts);
            }
            None => {
                let is_whole = part.is_none_or(|(_, n, n_parts)| n == 1 && n_parts == 1);
                found.push(FileCandidate { files: vec![name.clone()], n_bytes: *n_bytes, is_whole });
            }
        }
        last_stem = stem;
    }
    found
}

/// `m-00002-of-00003.gguf` -> (`m`, 2, 3).
fn part_of(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, n_parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, n) = rest.rsplit_once('-')?;
    Some((stem, n.parse().ok()?, n_parts.parse().ok()?))
}

/// The model that is meant by `wanted`, or the best for `memory`; the error lists the choices.
pub fn choose(
    files: &[(String, Option<u64>)],
    wanted: Option<&str>,
    billions: Option<f64>,
    memory: Option<&MemoryBudget>,
) -> Result<ChosenFile> {
    let all = candidates(files);
    if all.is_empty() {
        return Err(anyhow!("has no GGUF file"))
            .hint("look for a repository of the same model whose name ends in -GGUF");
    }
    let list = || all.iter().map(|model| format!("\n  {}", model.first())).collect::<String>();
    let whole: Vec<&FileCandidate> = all.iter().filter(|model| model.is_whole).collect();
    if let Some(wanted) = wanted {
        let exact = all.iter().find(|model| model.files.iter().any(|file| file == wanted));
        let matching: Vec<&&FileCandidate> = whole.iter().filter(|model| model.has(wanted)).collect();
        return match (exact, &matching[..]) {
            (Some(exact), _) => Ok(ChosenFile { candidate: exact.clone(), why: None }),
            (None, [only]) => Ok(ChosenFile { candidate: (**only).clone(), why: None }),
            _ => {
                let mut there: Vec<String> = whole.iter().filter_map(|model| quantization_of(model.first())).collect();
                there.sort();
                there.dedup();
                Err(NoSuchFile { wanted: wanted.to_owned(), n_matching: matching.len(), there })
                    .with_hint(|| format!("name one of these after the colon:{}", list()))
            }
        };
    }
    if let [only] = whole[..] {
        return Ok(ChosenFile { candidate: only.clone(), why: None });
    }
    let order = if billions.is_some_and(|billions| billions < SMALL_BILLIONS) { SMALL } else { USUAL };
    let ranked: Vec<(&str, &FileCandidate)> =
        order.iter().filter_map(|tag| whole.iter().find(|model| model.has(tag)).map(|model| (*tag, *model))).collect();
    let Some(&(usual, first)) = ranked.first() else {
        return Err(anyhow!("has {} GGUF files, none with a common quantization in its name", all.len()))
            .with_hint(|| format!("name one after a colon:{}", list()));
    };
    Ok(by_memory(usual, first, &ranked, memory))
}

fn by_memory(
    usual: &str,
    first: &FileCandidate,
    ranked: &[(&str, &FileCandidate)],
    memory: Option<&MemoryBudget>,
) -> ChosenFile {
    let (Some(memory), Some(n_bytes)) = (memory, first.n_bytes) else {
        return ChosenFile { candidate: first.clone(), why: Some(format!("{usual}, the usual choice")) };
    };
    let room = format!("{} of memory ({})", human_bytes(memory.n_bytes), memory.of);
    if memory.holds(n_bytes) {
        let why = format!("{usual} ({}), which fits the {room}", human_bytes(n_bytes));
        return ChosenFile { candidate: first.clone(), why: Some(why) };
    }
    let sized = ranked.iter().filter_map(|(tag, model)| Some((*tag, *model, model.n_bytes?)));
    let fitting = sized.clone().find(|(_, _, n_bytes)| memory.holds(*n_bytes));
    let Some((tag, model, size)) = fitting.or_else(|| sized.min_by_key(|(_, _, n_bytes)| *n_bytes)) else {
        return ChosenFile { candidate: first.clone(), why: Some(format!("{usual}, the usual choice")) };
    };
    let why = match memory.holds(size) {
        true => format!("{tag} ({}): {usual} ({}) does not fit the {room}", human_bytes(size), human_bytes(n_bytes)),
        false => format!("{tag} ({}), the smallest there is: none fits the {room}", human_bytes(size)),
    };
    ChosenFile { candidate: model.clone(), why: Some(why) }
}

/// Whether the file name carries the tag as a word: `Q4_K_M` in `x-Q4_K_M.gguf`, but not in `x-IQ4_K_M.gguf`.
pub fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_uppercase(), tag.to_uppercase());
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    name.match_indices(&tag).any(|(start, _)| {
        !is_word(name[..start].chars().next_back()) && !is_word(name[start + tag.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[(&str, u64)]) -> Vec<(String, Option<u64>)> {
        names.iter().map(|(name, n)| ((*name).to_owned(), (*n > 0).then_some(*n))).collect()
    }

    const GB: u64 = 1_000_000_000;

    #[test]
    fn takes_the_file_that_was_named_or_the_usual_one() {
        let names = files(&[
            ("README.md", 0),
            ("m-IQ4_K_M.gguf", 0),
            ("m-Q8_0.gguf", 0),
            ("m-Q4_K_M.gguf", 0),
            ("mmproj.gguf", 0),
        ]);
        let check = |wanted, expected: &str| {
            assert_eq!(choose(&names, wanted, None, None).unwrap().candidate.first(), expected);
        };
        check(None, "m-Q4_K_M.gguf");
        check(Some("q8_0"), "m-Q8_0.gguf");
        check(Some("m-IQ4_K_M.gguf"), "m-IQ4_K_M.gguf");
        let error = choose(&names, Some("Q5_K"), None, None).unwrap_err();
        assert!(error.to_string().contains("0 GGUF files that match `Q5_K`"), "{error}");
        assert!(crate::hint::hint_of(&error).unwrap().contains("\n  m-Q8_0.gguf"));
        assert!(choose(&files(&[("model.safetensors", 0)]), None, None, None).is_err());
        assert_eq!(choose(&files(&[("odd.gguf", 0)]), None, None, None).unwrap().candidate.first(), "odd.gguf");
    }

    #[test]
    fn quantizations_are_known_by_their_form() {
        for word in ["q4_K_M", "Q8_0", "IQ2_XXS", "TQ1_0", "UD-Q4_K_XL", "bf16", "mxfp4"] {
            assert!(is_quantization(word), "{word}");
        }
        for word in ["q9_9", "Q4", "Q0_0", "4bit", "instruct", ""] {
            assert!(!is_quantization(word), "{word}");
        }
        let check =
            |name: &str, expected: Option<&str>| assert_eq!(quantization_of(name).as_deref(), expected, "{name}");
        check("m-Q4_K_M.gguf", Some("q4_k_m"));
        check("q/m.Q8_0.gguf", Some("q8_0"));
        check("m-UD-Q4_K_XL.gguf", Some("ud-q4_k_xl"));
        check("q/m-Q4_K_M-00001-of-00002.gguf", Some("q4_k_m"));
        check("m.gguf", None);
    }

    #[test]
    fn memory_decides() {
        let names = files(&[("m-Q8_0.gguf", 8 * GB), ("m-Q4_K_M.gguf", 5 * GB), ("m-Q2_K.gguf", 3 * GB)]);
        let check = |n_gb: u64, billions, expected: &str, why: &str| {
            let memory = MemoryBudget { n_bytes: n_gb * GB, of: "card".to_owned() };
            let choice = choose(&names, None, Some(billions), Some(&memory)).unwrap();
            assert_eq!(choice.candidate.first(), expected);
            assert!(choice.why.as_ref().unwrap().contains(why), "{choice:?}");
        };
        check(16, 8.0, "m-Q4_K_M.gguf", "which fits the 16.0 GB of memory (card)");
        check(4, 8.0, "m-Q2_K.gguf", "Q4_K_M (5.00 GB) does not fit the 4.00 GB");
        check(1, 8.0, "m-Q2_K.gguf", "the smallest there is");
        check(16, 1.0, "m-Q8_0.gguf", "which fits");
        check(7, 1.0, "m-Q4_K_M.gguf", "Q8_0 (8.00 GB) does not fit");
    }

    #[test]
    fn parts_are_one_model() {
        let names = files(&[
            ("q/m-Q4_K_M-00002-of-00002.gguf", 2),
            ("q/m-Q4_K_M-00001-of-00002.gguf", 3),
            ("m-Q8_0-00001-of-00003.gguf", 9),
        ]);
        let found = candidates(&names);
        assert_eq!(found.len(), 2);
        assert!(!found[0].is_whole, "two of its parts are missing");
        let choice = choose(&names, None, None, None).unwrap().candidate;
        assert_eq!(choice.files, ["q/m-Q4_K_M-00001-of-00002.gguf", "q/m-Q4_K_M-00002-of-00002.gguf"]);
        assert_eq!((choice.n_bytes, choice.is_whole), (Some(5), true));
    }
}
