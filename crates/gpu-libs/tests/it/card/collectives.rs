//! RCCL and NCCL. What comes out is defined by what each member puts in, so plain sums are the reference.

use gpu::{Buffer, Queue};
use gpu_libs::collectives::{Communicator, Message, Reduction, UniqueId, group};
use gpu_libs::{Error, Result};

use super::{on_each, read, refused, upload};

/// A communicator of one member: everything is its own.
#[test]
fn collectives_of_one() {
    on_each(|queue| {
        let one = Communicator::of(&[queue])?.remove(0);
        assert_eq!((one.rank(), one.ranks()), (0, 1));
        let (x, mut y) = (upload(queue, &[1f32, 2.0, 3.0, 4.0]), upload(queue, &[0f32; 4]));
        one.all_reduce(Reduction::Sum, x.all(), y.all_mut())?;
        assert_eq!(read(queue, y.all()), [1.0, 2.0, 3.0, 4.0]);
        let mut z = upload(queue, &[0f32; 4]);
        one.all_gather(y.all(), z.all_mut())?;
        one.broadcast(0, z.all_mut())?;
        one.all_reduce_in_place(Reduction::Max, z.all_mut())?;
        assert_eq!(read(queue, z.all()), [1.0, 2.0, 3.0, 4.0]);
        let mut w = upload(queue, &[0f32; 4]);
        one.reduce_scatter(Reduction::Sum, z.all(), w.all_mut())?;
        assert_eq!(read(queue, w.all()), [1.0, 2.0, 3.0, 4.0]);
        let mut to = upload(queue, &[0f32; 4]);
        group(queue.device().vendor(), |calls| {
            calls.send(&one, 0, w.all())?;
            calls.receive(&one, 0, to.all_mut())
        })?;
        assert_eq!(read(queue, to.all()), [1.0, 2.0, 3.0, 4.0]);
        one.check()
    });
}

#[test]
fn collectives_joined_by_id() {
    on_each(|queue| {
        let id = UniqueId::new(queue.device().vendor())?;
        let one = Communicator::join(queue, id, 0, 1)?;
        let mut data = upload(queue, &[5i32, -7]);
        one.all_reduce_in_place(Reduction::Min, data.all_mut())?;
        assert_eq!(read(queue, data.all()), [5, -7]);
        Ok(())
    });
}

#[test]
fn collectives_misuse() {
    on_each(|queue| {
        let vendor = queue.device().vendor();
        refused(Communicator::of(&[]), "no queues");
        refused(Communicator::join(queue, UniqueId([0; 128]), 1, 1), "member 1 of 1");
        let one = Communicator::of(&[queue])?.remove(0);
        let (x, mut y) = (queue.alloc_zeroed::<f32>(4)?, queue.alloc_zeroed::<f32>(3)?);
        refused(one.all_reduce(Reduction::Sum, x.all(), y.all_mut()), "4 elements into 3");
        refused(one.all_gather(x.all(), y.all_mut()), "parts of 4 elements of 1 members in 3");
        refused(one.reduce_scatter(Reduction::Sum, x.all(), y.all_mut()), "parts of 3 elements");
        refused(one.broadcast(1, y.all_mut()), "member 1 of 1");
        refused(one.send(2, x.all()), "member 2 of 1");
        let other = Queue::new(queue.device())?;
        let foreign = other.alloc_zeroed::<f32>(3)?;
        refused(one.all_reduce(Reduction::Sum, foreign.all(), y.all_mut()), "queue");
        // A call that would outlive its borrow.
        let inside = group(vendor, |_| one.broadcast(0, y.all_mut()));
        refused(inside, "inside a group");
        refused(group(vendor, |_| group(vendor, |_| Ok(()))), "inside a group");
        one.broadcast(0, y.all_mut())
    });
}

fn numbers<T: Message>(queues: &[Queue], of: impl Fn(usize) -> Vec<T>) -> Vec<Buffer<T>> {
    queues.iter().enumerate().map(|(rank, queue)| upload(queue, &of(rank))).collect()
}

/// Every collective between two GPUs of one machine, where there are two.
#[test]
fn collectives_of_two() {
    let devices = test_support::gpus::open();
    for vendor in gpu::Vendor::ALL {
        let queues: Vec<Queue> = devices
            .iter()
            .filter(|device| device.vendor() == vendor)
            .take(2)
            .map(|device| Queue::new(device).unwrap())
            .collect();
        if queues.len() < 2 {
            test_support::skip(&format!("two {vendor:?} GPUs are not here"), "ROCI_REQUIRE_TWO_GPUS");
            continue;
        }
        match between_two(&queues) {
            Ok(()) => {}
            Err(Error::Gpu(error @ gpu::Error::NoLibrary { .. })) => {
                test_support::skip(&error.to_string(), "ROCI_REQUIRE_LIBRARIES");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn between_two(queues: &[Queue]) -> Result<()> {
    let members = Communicator::of(&queues.iter().collect::<Vec<_>>())?;
    let vendor = queues[0].device().vendor();

    let from = numbers(queues, |rank| (0..1000).map(|i| (i * (rank + 1)) as f32).collect());
    let mut to = numbers(queues, |_| vec![0f32; 1000]);
    group(vendor, |calls| {
        for ((member, from), to) in members.iter().zip(&from).zip(&mut to) {
            calls.all_reduce(member, Reduction::Sum, from.all(), to.all_mut())?;
        }
        Ok(())
    })?;
    let sums: Vec<f32> = (0..1000).map(|i| (i * 3) as f32).collect();
    for (queue, to) in queues.iter().zip(&to) {
        assert_eq!(read(queue, to.all()), sums);
    }

    let from = numbers(queues, |rank| vec![10 * rank as i32, 10 * rank as i32 + 1]);
    let mut to = numbers(queues, |_| vec![-1i32; 4]);
    group(vendor, |calls| {
        members
            .iter()
            .zip(&from)
            .zip(&mut to)
            .try_for_each(|((m, from), to)| calls.all_gather(m, from.all(), to.all_mut()))
    })?;
    for (queue, to) in queues.iter().zip(&to) {
        assert_eq!(read(queue, to.all()), [0, 1, 10, 11]);
    }

    let from = numbers(queues, |rank| vec![1.0 + rank as f64, 2.0, 3.0, 4.0]);
    let mut part = numbers(queues, |_| vec![0f64; 2]);
    group(vendor, |calls| {
        let all = members.iter().zip(&from).zip(&mut part);
        all.into_iter()
            .try_for_each(|((m, from), to)| calls.reduce_scatter(m, Reduction::Product, from.all(), to.all_mut()))
    })?;
    assert_eq!(read(&queues[0], part[0].all()), [2.0, 4.0]);
    assert_eq!(read(&queues[1], part[1].all()), [9.0, 16.0]);

    let mut data = numbers(queues, |rank| vec![rank as u8 + 7; 3]);
    group(vendor, |calls| {
        members.iter().zip(&mut data).try_for_each(|(m, data)| calls.broadcast(m, 1, data.all_mut()))
    })?;
    assert_eq!(read(&queues[0], data[0].all()), [8; 3]);

    let from = numbers(queues, |rank| vec![half::f16::from_f32(rank as f32 + 0.5); 5]);
    let mut to = numbers(queues, |_| vec![half::f16::ZERO; 5]);
    group(vendor, |calls| {
        for (rank, (from, to)) in from.iter().zip(&mut to).enumerate() {
            calls.send(&members[rank], 1 - rank, from.all())?;
            calls.receive(&members[rank], 1 - rank, to.all_mut())?;
        }
        Ok(())
    })?;
    assert_eq!(read(&queues[0], to[0].all()), [half::f16::from_f32(1.5); 5]);
    assert_eq!(read(&queues[1], to[1].all()), [half::f16::from_f32(0.5); 5]);
    members.iter().try_for_each(Communicator::check)
}
