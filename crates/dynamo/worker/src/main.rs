//! `roci-dynamo-worker --model-path MODEL --tokenizer FOLDER`: a worker of Dynamo. Started again with `engine`, it is the process
//! that computes.

use clap::Parser;
use roci_dynamo_worker::{EngineArgs, Isolation, RociEngine};
use std::sync::Arc;

fn main() -> anyhow::Result<()> {
    // GPUs are looked for through a child of this program.
    rocinante::answer_if_asked();
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "engine") {
        return Ok(rocinante::serve_engine()?);
    }
    let (engine, config) = RociEngine::new(&EngineArgs::parse(), Isolation::Process)?;
    dynamo_backend_common::run(Arc::new(engine), config)
}
