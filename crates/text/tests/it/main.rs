//! One binary for all integration tests of `text`.
//!
//! Golden data come from other people's programs (Hugging Face's tokenizers and transformers, llama.cpp); the
//! scripts that made them stand in testdata/make. Tests over whole vocabularies need files too large to keep
//! here and are skipped with a reason where those are not given (see vocabularies.rs).

mod answers;
mod chat_templates;
mod constraints;
mod golden;
mod hostile;
mod json_kinds;
mod properties;
mod small_vocab;
mod vocabularies;
