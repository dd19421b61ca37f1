//! `/openapi.json`: what this server answers to. The document is written by hand beside this file; tests compare it with
//! the routes and with the fields that the request types read.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

const DOCUMENT: &str = include_str!("openapi.json");

pub async fn document() -> Response {
    match serde_json::from_str::<Value>(DOCUMENT) {
        Ok(mut document) => {
            document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
            Json(document).into_response()
        }
        Err(error) => super::error::ApiError::internal(error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{anthropic, llama, ollama, openai, rerank, sampling, tokens};
    use serde::Deserialize;
    use serde::de::value::Error;
    use serde::de::{Deserializer, Error as _, Visitor};
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let source = include_str!("lib.rs");
        let routes = source.match_indices(".route(\"").map(|(at, start)| {
            let rest = &source[at + start.len()..];
            rest[..rest.find('"').unwrap()].replace("{*name}", "{name}")
        });
        let page = ["/", "/{*path}", "/openapi.json"];
        for route in routes.filter(|route| !page.contains(&route.as_str())) {
            assert!(paths.contains_key(&route), "{route} is not in openapi.json");
        }
    }

    /// Takes down the names that a derived `Deserialize` asks for, aliases among them, and reads nothing.
    struct FieldNames<'a>(&'a mut BTreeSet<&'static str>);

    impl<'de> Deserializer<'de> for FieldNames<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            self.0.extend(fields);
            Err(Error::custom("names only"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn names<T: for<'de> Deserialize<'de>>() -> BTreeSet<&'static str> {
        let mut names = BTreeSet::new();
        let _ = T::deserialize(FieldNames(&mut names));
        assert!(!names.is_empty(), "{} is a struct with fields", std::any::type_name::<T>());
        names
    }

    /// A field is described as a property, an alias by its name in a property's description.
    #[track_caller]
    fn check(schema: &str, accepted: &[BTreeSet<&'static str>]) {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let accepted: BTreeSet<&str> = accepted.iter().flatten().copied().collect();
        let is_alias = |name: &str| {
            let mut texts = properties.values().filter_map(|property| property["description"].as_str());
            texts.any(|text| text.contains("Also accepted as") && text.contains(&format!("`{name}`")))
        };
        for name in &accepted {
            assert!(properties.contains_key(*name) || is_alias(name), "{schema} does not describe `{name}`");
        }
        for name in properties.keys() {
            assert!(accepted.contains(name.as_str()), "{schema} describes `{name}`, which is not read");
        }
    }

    #[test]
    fn every_field_of_a_request_is_described() {
        use openai::chat::{ChatRequest, Fields};
        let shared = || {
            [names::<Fields>(), names::<sampling::SamplingParams>(), names::<openai::response_format::OutputFormat>()]
        };
        let with_shared = |own| [vec![own], shared().to_vec()].concat();
        check("ChatRequest", &with_shared(names::<ChatRequest>()));
        check("CompletionRequest", &with_shared(names::<openai::completions::CompletionRequest>()));
        check("LlamaCompletion", &with_shared(names::<llama::completion::LlamaCompletion>()));
        check("EmbeddingRequest", &[names::<openai::embeddings::EmbeddingRequest>()]);
        check("ResponseRequest", &[names::<openai::responses::ResponseRequest>()]);
        check("Metadata", &[names::<openai::chat_store::Change>()]);
        check("MessagesRequest", &[names::<anthropic::MessagesRequest>()]);
        check("CountRequest", &[names::<anthropic::MessagesRequest>()]);
        check("OllamaOptions", &[names::<sampling::SamplingParams>()]);
        check("OllamaChat", &[names::<ollama::generate::OllamaChat>()]);
        check("OllamaGenerate", &[names::<ollama::generate::GenerateRequest>()]);
        check("OllamaEmbed", &[names::<ollama::EmbedRequest>()]);
        check("OllamaEmbeddings", &[names::<ollama::EmbeddingsRequest>()]);
        check("OllamaShow", &[names::<ollama::listing::ShowRequest>()]);
        check("OllamaPull", &[names::<ollama::manage::PullRequest>()]);
        check("OllamaCreate", &[names::<ollama::manage::CreateRequest>()]);
        check("OllamaCopy", &[names::<ollama::manage::CopyRequest>()]);
        check("OllamaDelete", &[names::<ollama::manage::DeleteRequest>()]);
        check("Tokenize", &[names::<tokens::TokenizeRequest>()]);
        check("Detokenize", &[names::<tokens::DetokenizeRequest>()]);
        let completion = with_shared(names::<llama::completion::LlamaCompletion>());
        check("Infill", &[completion, vec![names::<llama::infill::InfillRequest>()]].concat());
        check("Rerank", &[names::<rerank::RerankRequest>()]);
        check("LlamaEmbedding", &[names::<llama::embedding::LlamaEmbedding>()]);
    }
}
