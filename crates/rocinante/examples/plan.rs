//! What loading a model would take, without loading it: `cargo run --example plan -- MODEL [DEVICE]`.

use rocinante::{ModelFiles, Options, Scheduling, Workload};

fn main() -> rocinante::Result<()> {
    rocinante::answer_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = args.as_slice() else {
        eprintln!("usage: plan MODEL [auto|cpu|cuda:0|rocm:0]");
        return Ok(());
    };
    let device = rest.first().map_or("auto", String::as_str).parse()?;
    let files = ModelFiles::open(path)?;
    for workload in [Workload::Conversation, Workload::Server(Scheduling::default())] {
        let plan = files.plan(&Options { device, workload, ..Options::default() })?;
        println!("{workload:?}\n{}\n{}", plan.lines(), plan.schedule);
        plan.device.notes().iter().for_each(|note| println!("note: {note}"));
    }
    Ok(())
}
