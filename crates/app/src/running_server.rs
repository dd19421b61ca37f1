//! A `roci serve` that runs somewhere: what `roci ps` and `roci stop` ask it.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

/// Where it listens.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address of the server [default: $ROCI_SERVER, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Key, if the server requires one [default: $ROCI_API_KEY]
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl ServerArgs {
    pub fn get(&self, path: &str) -> Result<Value> {
        self.answer(path, self.with_key(ureq::get(self.url(path))).config().http_status_as_error(false).build().call())
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.with_key(ureq::post(self.url(path))).header("content-type", "application/json");
        let text = body.to_string();
        self.answer(path, request.config().http_status_as_error(false).build().send(text.as_bytes()))
    }

    fn base(&self) -> String {
        let named = self.server.clone().or_else(|| std::env::var("ROCI_SERVER").ok());
        let base = named.filter(|url| !url.is_empty()).unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
        let base = if base.contains("://") { base } else { format!("http://{base}") };
        base.trim_end_matches('/').to_owned()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base())
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match self.key.clone().or_else(|| std::env::var("ROCI_API_KEY").ok()) {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn answer(&self, path: &str, sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value> {
        let mut response = sent
            .with_context(|| format!("no server answers at {}", self.base()))
            .hint("`roci serve` starts one; --server or ROCI_SERVER names another address")?;
        let text = response.body_mut().read_to_string().context("the server's answer was cut off")?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        match (response.status().as_u16(), json) {
            (200, Some(json)) => Ok(json),
            (401 | 403, _) => Err(anyhow!("{} requires a key", self.base())).hint("--key or ROCI_API_KEY"),
            (status, Some(json)) => {
                let message =
                    json["error"]["message"].as_str().or(json["error"].as_str()).unwrap_or("it did not say why");
                bail!("{} answered {status}: {message}", self.base())
            }
            (status, None) => Err(anyhow!("{}{path} answered {status}, not in JSON", self.base()))
                .hint("is it a roci server? --server names another address"),
        }
    }
}
