//! The pre-tokenizers by name: one row for each way of cutting words that published vocabularies use.
//!
//! Names are those of `tokenizer.ggml.pre`; expressions are those of the models' own tokenizers, less the
//! look-aheads (see [`crate::pre_tokenizer`]). Data only.

use crate::pre_tokenizer::WordRule;

pub(crate) struct PreTokenizerFamily {
    pub names: &'static [&'static str],
    pub cuts: &'static [(&'static str, WordRule)],
    /// A word that is a token by itself is taken whole, whatever the merges say.
    pub ignores_merges: bool,
    /// Whether texts begin with BOS when the file does not say.
    pub adds_bos: bool,
    pub spelling: Spelling,
}

/// How a token's text stands for bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Spelling {
    /// In GPT-2's alphabet of 256 printable characters.
    ByteLevel,
    /// As it is, with `▁` for a space.
    Metaspace,
}

const ROW: PreTokenizerFamily =
    PreTokenizerFamily { names: &[], cuts: &[], ignores_merges: false, adds_bos: false, spelling: Spelling::ByteLevel };
const WITH_NEWLINES: WordRule = WordRule::Lookahead { has_newline_branch: true };
const GPT2: (&str, WordRule) = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    WordRule::Lookahead { has_newline_branch: false },
);
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const BLOOM: (&str, WordRule) =
    (r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+", WordRule::Plain);
const DIGIT: (&str, WordRule) = (r"\p{N}", WordRule::Plain);
const LINES: (&str, WordRule) = (r"[^\n]+|\n+", WordRule::Plain);

pub(crate) const FAMILIES: &[PreTokenizerFamily] = &[
    PreTokenizerFamily {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        cuts: &[(LLAMA3, WITH_NEWLINES)],
        ignores_merges: true,
        adds_bos: true,
        ..ROW
    },
    PreTokenizerFamily { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], cuts: &[(LLAMA3, WITH_NEWLINES)], ..ROW },
    PreTokenizerFamily { names: &["glm4", "glm5"], cuts: &[(LLAMA3, WITH_NEWLINES)], ignores_merges: true, ..ROW },
    PreTokenizerFamily {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "kormo",
            "f2llmv2",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        cuts: &[(QWEN2, WITH_NEWLINES)],
        ..ROW
    },
    PreTokenizerFamily { names: &["laguna"], cuts: &[LINES, (QWEN2, WITH_NEWLINES)], ..ROW },
    PreTokenizerFamily {
        names: &["qwen35"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["ufakzeka"],
        cuts: &[(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", WITH_NEWLINES)],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        cuts: &[(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
            WITH_NEWLINES,
        )],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["seed-coder"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["minicpm5"],
        cuts: &[
            (r"\p{N}{1,3}", WordRule::Plain),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
                WITH_NEWLINES,
            ),
        ],
        ignores_merges: true,
        ..ROW
    },
    PreTokenizerFamily {
        names: &["exaone-moe"],
        cuts: &[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+",
            WITH_NEWLINES,
        )],
        ..ROW
    },
    PreTokenizerFamily { names: &["jais-2"], cuts: &[(LLAMA3, WordRule::SpacesByPowers)], ..ROW },
    PreTokenizerFamily {
        names: &["tekken"],
        cuts: &[(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ignores_merges: true,
        adds_bos: true,
        ..ROW
    },
    PreTokenizerFamily {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        cuts: &[(GPT4O, WITH_NEWLINES)],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["granite-embed-multi-97m"],
        cuts: &[(GPT4O, WITH_NEWLINES)],
        ignores_merges: true,
        ..ROW
    },
    PreTokenizerFamily {
        names: &["tiny_aya", "cohere2moe"],
        cuts: &[(r"\d+\b", WordRule::ThreesFromEnd), (GPT4O, WITH_NEWLINES)],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["kimi-k2"],
        cuts: &[(
            r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            WITH_NEWLINES,
        )],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["deepseek-llm"],
        cuts: &[
            (r"[\r\n]", WordRule::Plain),
            (
                r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
                WordRule::Plain,
            ),
            (r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+", WordRule::Plain),
            (r"\s+$", WordRule::Plain),
            (r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+", WordRule::Plain),
            (r"\p{N}+", WordRule::Plain),
        ],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["deepseek-coder"],
        cuts: &[
            (r"[\r\n]", WordRule::Plain),
            (r"\s?\p{L}+", WordRule::Plain),
            (r"\s?\p{P}+", WordRule::Plain),
            (r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+", WordRule::Plain),
            DIGIT,
        ],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        cuts: &[
            (r"\p{N}{1,3}", WordRule::Plain),
            (r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", WordRule::Plain),
            (DEEPSEEK3, WITH_NEWLINES),
        ],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["spark2_5"],
        cuts: &[
            (r"\p{N}{1,3}", WordRule::Plain),
            (r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", WordRule::Plain),
            (
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##,
                WordRule::Lookahead { has_newline_branch: false },
            ),
            DIGIT,
        ],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["afmoe"],
        cuts: &[
            (r"\p{N}+", WordRule::ThreesFromEnd),
            (
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+",
                WordRule::Plain,
            ),
            (DEEPSEEK3, WITH_NEWLINES),
        ],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["youtu"],
        cuts: &[
            (
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
                WordRule::Plain,
            ),
            (
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
                WITH_NEWLINES,
            ),
        ],
        ignores_merges: true,
        ..ROW
    },
    PreTokenizerFamily {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        cuts: &[DIGIT, GPT2],
        ..ROW
    },
    PreTokenizerFamily {
        names: &[
            "gpt-2",
            "mpt",
            "olmo",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        cuts: &[GPT2],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["falcon"],
        cuts: &[(r"[\p{P}\$\+<=>\^~\|`]+", WordRule::Plain), GPT2, (r"[0-9][0-9][0-9]", WordRule::Plain)],
        ..ROW
    },
    PreTokenizerFamily { names: &["poro-chat", "bloom", "gpt3-finnish"], cuts: &[BLOOM], ..ROW },
    PreTokenizerFamily { names: &["viking"], cuts: &[BLOOM, DIGIT], ..ROW },
    PreTokenizerFamily {
        names: &["superbpe"],
        cuts: &[(r"\p{N}+", WordRule::Plain), (r"\d+", WordRule::ThreesFromEnd)],
        ..ROW
    },
    PreTokenizerFamily {
        names: &["chameleon"],
        cuts: &[
            (r"<sentinel:[0-9]+>", WordRule::Plain),
            (r"IMGIMG[A-I]{1,4}Z", WordRule::Plain),
            (r"[\t\n]|    |  ", WordRule::Plain),
            DIGIT,
            (r"[\p{P}!-/:-@\[-`{-~]", WordRule::Plain),
            GPT2,
        ],
        adds_bos: true,
        ..ROW
    },
    PreTokenizerFamily {
        names: &["gemma4", "granite-embed-multi-311m"],
        cuts: &[LINES],
        adds_bos: true,
        spelling: Spelling::Metaspace,
        ..ROW
    },
    PreTokenizerFamily { names: &["sarvam-moe"], cuts: &[LINES], spelling: Spelling::Metaspace, ..ROW },
    PreTokenizerFamily {
        names: &["default"],
        cuts: &[
            (r"[\p{P}\$\+<=>\^~\|]+", WordRule::Plain),
            GPT2,
            (r"\p{N}+", WordRule::Plain),
            (r"[0-9][0-9][0-9]", WordRule::Plain),
        ],
        ..ROW
    },
];

pub(crate) fn family(pre: &str) -> Option<&'static PreTokenizerFamily> {
    let pre = if pre.is_empty() { "default" } else { pre };
    FAMILIES.iter().find(|family| family.names.contains(&pre))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_compiles_and_no_name_stands_twice() {
        let mut names: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
        for &name in &names {
            crate::pre_tokenizer::PreTokenizer::new(name).unwrap();
        }
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }
}
