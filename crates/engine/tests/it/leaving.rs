//! A client that leaves frees its blocks within a step: it goes while a step is under way, and when that step ends,
//! before another begins, its blocks are free. Each step says that it has begun and waits for a permit.

use std::sync::mpsc::{self, Receiver, Sender};

use batch::{Attention, BLOCK_TOKENS};
use engine::{Command, EngineOptions, Event, Handle, Pooling, Stats, Submit};

use crate::{
    generation::vector,
    toy::{self, Toy},
};

struct Steps {
    handle: Handle,
    /// How many sequences each step computes, when it begins.
    began: Receiver<usize>,
    permit: Sender<()>,
}

impl Steps {
    fn start() -> Self {
        let ((permit, gate), (announce, began)) = (mpsc::channel(), mpsc::channel());
        let mut toy = Toy::new(64);
        (toy.gate, toy.announce) = (Some(gate), Some(announce));
        Self { handle: engine::start(toy, EngineOptions::default(), None), began, permit }
    }

    fn submit(&self, n_prompt: usize) -> Submit {
        Submit::new(self.handle.next_request_id(), toy::prompt(n_prompt as u64, n_prompt), 1000)
    }

    /// Lets the step under way end, and looks at the engine before the next.
    fn finish_step(&self) -> Stats {
        let (sink, events) = mpsc::channel();
        // Read after whatever was sent before.
        self.handle.send_to(Command::Stats, &sink).unwrap();
        self.permit.send(()).unwrap();
        match events.recv() {
            Ok(Event::Stats(stats)) => *stats,
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// `n_prompt`: 20 tokens are read in the first step, and the request decodes when it is left; 200 tokens take four.
#[test]
fn a_client_that_leaves_holds_blocks_for_no_further_step() {
    for (n_prompt, is_cancelled) in [(20, true), (20, false), (200, true), (200, false)] {
        let steps = Steps::start();
        let stays = steps.handle.submit(steps.submit(5)).unwrap();
        assert_eq!(steps.began.recv(), Ok(1));
        let leaver = steps.submit(n_prompt);
        let (id, leaver) = (leaver.id, steps.handle.submit(leaver).unwrap());
        steps.finish_step();
        for _ in 0..2 {
            assert_eq!(steps.began.recv(), Ok(2));
            let stats = steps.finish_step();
            assert!(stats.n_blocks_held > 1, "{n_prompt}: both hold blocks");
        }
        assert_eq!(steps.began.recv(), Ok(2));
        match is_cancelled {
            true => steps.handle.cancel(id).unwrap(),
            false => drop(leaver),
        }
        let stats = steps.finish_step();
        assert_eq!((stats.n_running, stats.n_blocks_held), (1, 1), "{n_prompt}: only the one that stays holds a block");
        assert_eq!(stats.n_steps, 4, "{n_prompt}: no step came between");
        assert_eq!(steps.began.recv(), Ok(1), "{n_prompt}: the next step is without it");
        drop(stays);
        assert_eq!(steps.finish_step().n_blocks_held, 0);
    }
}

/// The same for a vector, and for one who leaves the queue.
#[test]
fn so_does_one_who_waits_for_a_vector_or_in_the_queue() {
    let steps = Steps::start();
    let text = toy::prompt(3, 10 * BLOCK_TOKENS);
    let embed = steps.handle.embed(vector(&steps.handle, &text, Pooling::Mean, Attention::Causal)).unwrap();
    assert_eq!(steps.began.recv(), Ok(1));
    let waiting = steps.handle.submit(steps.submit(9)).unwrap();
    drop((embed, waiting));
    let stats = steps.finish_step();
    assert_eq!((stats.n_running, stats.n_waiting, stats.n_blocks_held, stats.n_steps), (0, 0, 0, 1));
}
