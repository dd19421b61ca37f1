//! `/openapi.json`: what this server answers to. The document is written by hand beside this file; a test holds it
//! against the routes.

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

    /// Every way to choose a token that is read from the wire, under its first name.
    #[test]
    fn every_sampler_is_described() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let source = include_str!("sampling.rs");
        let start = source.find("pub struct Knobs {").unwrap();
        let knobs = &source[start..start + source[start..].find("\n}").unwrap()];
        let names = knobs.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": Option<"));
        // Ollama's own names of what others call max_tokens and the context.
        let names: Vec<&str> = names.map(|(name, _)| name).filter(|name| !name.starts_with("num_")).collect();
        assert!(names.len() > 20, "{names:?}");
        for schema in ["ChatRequest", "CompletionRequest"] {
            let described = &document["components"]["schemas"][schema]["properties"];
            let missing: Vec<&&str> = names.iter().filter(|name| described[**name].is_null()).collect();
            assert!(missing.is_empty(), "{schema} lacks {missing:?}");
        }
    }

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
}
