//! `roci serve`: models behind an HTTP API.

use crate::options::LoadArgs;
use crate::report::HintExt;
use crate::server::loaded::LoadSettings;
use crate::server::models::{Registry, open_entry};
use crate::server::sampling::Defaults;
use crate::server::{self, App};
use anyhow::{Context, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  roci serve smollm2                        http://127.0.0.1:8080, for OpenAI's clients under /v1
  roci serve chat=./a.gguf code=./b.gguf    two models by name, loaded when asked for";

/// Serve models over HTTP
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to serve: a known name, the path of a GGUF file or hf:OWNER/REPO[:FILE], each as NAME=MODEL for another name
    #[arg(required = true)]
    pub models: Vec<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    #[command(flatten)]
    pub load: LoadArgs,
}

pub fn main(args: &Args) -> Result<()> {
    let entries = args.models.iter().map(|model| open_entry(model)).collect::<Result<Vec<_>>>()?;
    let settings = LoadSettings {
        load: args.load.clone(),
        max_running: 64,
        max_queue: 1024,
        max_batch_tokens: 512,
        prefill_chunk: 256,
        kv_tokens: None,
    };
    let defaults = Defaults { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, max_tokens: None };
    let registry = Registry::new(entries, settings, 1, false);
    let app = Arc::new(App::new(registry, defaults));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(async {
        let first = app.models.entries()[0].name.clone();
        if let Err(error) = app.models.get(&first).await {
            return Err(anyhow::anyhow!(error.message)).hint("`roci inspect MODEL` shows what the file holds");
        }
        server::run(app, SocketAddr::new(args.host, args.port), Duration::from_secs(30)).await
    })
}
