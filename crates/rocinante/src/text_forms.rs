//! What a model expects around the texts that it turns into vectors and scores: named prompts, as sentence-transformers
//! keeps them, and the text that joins a question and a document for rerankers that answer "yes" or "no".

use std::borrow::Cow;
use std::collections::BTreeMap;

use ::model::TokenId;
use serde_json::Value as Json;
use text::Tokenizer;
use weights::Checkpoint;

use crate::template::ids;
use crate::vectors::encode_pair;
use crate::{Error, Result};

/// The templates and prompts for texts to be embedded or ranked.
#[derive(Clone, Debug, Default)]
pub struct TextForms {
    /// With `{query}` and `{document}`; `None` where both are joined as encoders read them.
    pair: Option<String>,
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
}

impl TextForms {
    /// As the files say.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let Some(hub) = checkpoint.hub() else {
            let pair = checkpoint.metadata().string("tokenizer.chat_template.rerank")?.map(str::to_owned);
            return Ok(Self { pair, ..Self::default() });
        };
        let pair = ::model::answers_yes_or_no(checkpoint).then(|| ::model::YES_OR_NO_FORM.to_owned());
        let Some(sentences) = &hub.sentences else { return Ok(Self { pair, ..Self::default() }) };
        let prompts = sentences.get("prompts").and_then(Json::as_object).into_iter().flatten();
        let prompts: BTreeMap<String, String> =
            prompts.filter_map(|(name, prompt)| Some((name.clone(), prompt.as_str()?.to_owned()))).collect();
        let default = sentences.get("default_prompt_name").and_then(Json::as_str);
        let default_prompt = default.filter(|name| prompts.contains_key(*name)).map(str::to_owned);
        Ok(Self { pair, prompts, default_prompt })
    }

    /// The text with the prompt of that name before it; without a name, with the one that the files name for that case,
    /// if any.
    pub fn prompted<'a>(&self, name: Option<&str>, text: &'a str) -> Result<Cow<'a, str>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok(Cow::Borrowed(text)) };
        match self.prompts.get(name) {
            Some(prompt) if prompt.is_empty() => Ok(Cow::Borrowed(text)),
            Some(prompt) => Ok(Cow::Owned(format!("{prompt}{text}"))),
            None => {
                let known = self.prompts.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                Err(Error::NoPrompt { name: name.to_owned(), known })
            }
        }
    }

    /// A question, or a text that may answer it, with the prompt that the files have for it.
    pub fn prompted_for_search<'a>(&self, side: SearchSide, text: &'a str) -> Cow<'a, str> {
        let names: &[&str] = match side {
            SearchSide::Query => &["query"],
            SearchSide::Document => &["document", "passage"],
        };
        let name = names.iter().copied().find(|name| self.prompts.contains_key(*name));
        self.prompted(name, text).unwrap_or(Cow::Borrowed(text))
    }

    /// A question and a document as a reranker reads them, and how many tokens come before the document's own where the
    /// model tells the two apart. Control tokens that are written out in either are text.
    pub fn pair(&self, tokenizer: &Tokenizer, query: &str, document: &str) -> (Vec<TokenId>, usize) {
        let Some(form) = &self.pair else { return encode_pair(tokenizer, query, document) };
        let fill = |part: &str| part.replace("{document}", &tokenizer.shield(document));
        let parts: Vec<String> = form.split("{query}").map(fill).collect();
        let tokens = ids(tokenizer.encode_shielded(&parts.join(&tokenizer.shield(query))));
        let n_tokens = tokens.len();
        (tokens, n_tokens)
    }
}

/// What a text is in a search.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SearchSide {
    /// What is asked.
    Query,
    /// What may answer it.
    Document,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_go_by_name_and_a_default() {
        let names = ["query", "document"].map(|name| (name.to_owned(), format!("{name}: ")));
        let mut forms = TextForms { prompts: names.into_iter().collect(), ..TextForms::default() };
        assert_eq!(forms.prompted(None, "x").unwrap(), "x");
        assert_eq!(forms.prompted(Some("query"), "x").unwrap(), "query: x");
        assert_eq!(forms.prompted_for_search(SearchSide::Document, "x"), "document: x");
        let error = forms.prompted(Some("task"), "x").unwrap_err().to_string();
        assert_eq!(error, "this model has no prompt named `task`; it has `document`, `query`");
        forms.default_prompt = Some("document".to_owned());
        assert_eq!(forms.prompted(None, "x").unwrap(), "document: x");
        assert!(TextForms::default().prompted(Some("query"), "x").unwrap_err().to_string().ends_with("it has none"));
    }
}
