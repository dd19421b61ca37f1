//! `roci engine`: an engine in a process of its own, started by `roci serve`, and by `roci run` for a GPU. Not for people:
//! it talks to its parent over the socket that is its standard input.

use anyhow::Result;
use rocinante::Options;

#[cfg(unix)]
pub fn main() -> Result<()> {
    use crate::report::HintExt;
    // Service managers send this to all processes of a service at once. The parent drains first, and ends this one when
    // it closes the socket.
    let is_asked = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGTERM, is_asked)?;
    let served = rocinante::serve_engine();
    let is_typed = matches!(served, Err(rocinante::ChildError::NoSocket(_)));
    let served = served.map_err(anyhow::Error::from);
    if is_typed { served.hint("`roci serve` and `roci run` start this command themselves") } else { served }
}

#[cfg(not(unix))]
pub fn main() -> Result<()> {
    anyhow::bail!("on this system, engines run inside `roci serve`")
}

/// Lets the engine run in a child of this process.
#[cfg(unix)]
pub fn in_child_process(options: &mut Options, max_deaths: usize) -> Result<()> {
    let process = rocinante::EngineProcess::this_program(["engine".into()])?;
    options.process = Some(process.max_deaths(max_deaths));
    Ok(())
}

#[cfg(not(unix))]
pub fn in_child_process(_options: &mut Options, _max_deaths: usize) -> Result<()> {
    Ok(())
}

/// The same for GPUs only, for one answer at a terminal: what happens to the process is told on standard error.
#[cfg(unix)]
pub fn in_own_process_for_gpus(options: &mut Options) -> Result<()> {
    use rocinante::EngineNotice;
    /// A GPU that fails so often in ten minutes will not do better.
    const MAX_DEATHS: usize = 3;
    let mut process = rocinante::EngineProcess::this_program(["engine".into()])?.only_for_gpus().max_deaths(MAX_DEATHS);
    if options.device == rocinante::Device::Auto {
        process = process.or_on_the_cpu();
    }
    options.process = Some(process.observed_by(|notice| match notice {
        EngineNotice::Stderr(line) => eprintln!("{line}"),
        EngineNotice::Died { .. } | EngineNotice::Resumed { .. } => eprintln!("note: {notice}"),
        EngineNotice::FellBack => eprintln!("note: the GPU is given up; the answer continues on the CPU"),
        EngineNotice::Progress(_) | EngineNotice::Unavailable(_) => {}
    }));
    Ok(())
}

#[cfg(not(unix))]
pub fn in_own_process_for_gpus(_options: &mut Options) -> Result<()> {
    Ok(())
}
