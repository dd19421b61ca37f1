//! AQL packets: 64 bytes that say what a queue does next.

use crate::dispatch::Launch;

pub const BYTES: u64 = 64;

/// `hsa_packet_type_t`.
const VENDOR: u8 = 0;
pub const INVALID: u16 = 1;
const DISPATCH: u8 = 2;
const BARRIER_AND: u8 = 3;
const BARRIER_OR: u8 = 5;

/// AMD's vendor formats, in the byte after the header.
const VENDOR_PM4: u8 = 1;
const VENDOR_BARRIER_VALUE: u8 = 2;

/// How a wait condition compares a signal with a value.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Condition {
    Equal,
    NotEqual,
    Less,
    GreaterEqual,
}

#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Body {
    Dispatch {
        kernel: u64,
        launch: Launch,
    },
    /// All (or any) of these signals at zero.
    Barrier {
        signals: [u64; 5],
        needs_all: bool,
    },
    /// A signal under a mask compared with a value.
    BarrierValue {
        signal: u64,
        value: i64,
        mask: i64,
        condition: Condition,
    },
    /// Command-processor work with no visible effect here (cache control, counters).
    Pm4,
    Unknown {
        kind: u8,
        format: u8,
    },
}

#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Packet {
    /// Wait for everything before in the queue.
    pub has_barrier: bool,
    pub body: Body,
    pub completion: u64,
}

impl Packet {
    /// `None` while the producer has not published the slot yet. `at` is the packet's device address.
    pub fn parse(bytes: &[u8; BYTES as usize], at: u64) -> Option<Packet> {
        let u16_at = |o: usize| u16::from_le_bytes([bytes[o], bytes[o + 1]]);
        let u32_at = |o: usize| u16_at(o) as u32 | (u16_at(o + 2) as u32) << 16;
        let u64_at = |o: usize| u32_at(o) as u64 | (u32_at(o + 4) as u64) << 32;
        let header = u16_at(0);
        if header & 0xff == INVALID {
            return None;
        }
        let (kind, format) = (header as u8, bytes[2]);
        let body = match kind {
            DISPATCH => {
                // Dimensions beyond the packet's count read as one.
                let n_dims = u16_at(2) & 3;
                let size = |d: u16, v: u32| if d < n_dims || n_dims == 0 { v } else { 1 };
                Body::Dispatch {
                    kernel: u64_at(32),
                    launch: Launch {
                        workgroup: [size(0, u16_at(4) as u32), size(1, u16_at(6) as u32), size(2, u16_at(8) as u32)],
                        grid: [size(0, u32_at(12)), size(1, u32_at(16)), size(2, u32_at(20))],
                        private_bytes: u32_at(24),
                        lds_bytes: u32_at(28),
                        kernarg: u64_at(40),
                        packet: at,
                        dispatch_id: 0,
                    },
                }
            }
            BARRIER_AND | BARRIER_OR => {
                Body::Barrier { signals: std::array::from_fn(|n| u64_at(8 + 8 * n)), needs_all: kind == BARRIER_AND }
            }
            VENDOR if format == VENDOR_BARRIER_VALUE => Body::BarrierValue {
                signal: u64_at(8),
                value: u64_at(16) as i64,
                mask: u64_at(24) as i64,
                condition: match u32_at(32) {
                    0 => Condition::Equal,
                    1 => Condition::NotEqual,
                    2 => Condition::Less,
                    _ => Condition::GreaterEqual,
                },
            },
            VENDOR if format == VENDOR_PM4 => Body::Pm4,
            _ => Body::Unknown { kind, format },
        };
        Some(Packet { has_barrier: header >> 8 & 1 == 1, body, completion: u64_at(56) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatch_packet() {
        let mut b = [0u8; 64];
        b[0] = DISPATCH;
        b[1] = 1;
        b[2] = 1;
        b[4..6].copy_from_slice(&256u16.to_le_bytes());
        b[12..16].copy_from_slice(&1024u32.to_le_bytes());
        b[28..32].copy_from_slice(&512u32.to_le_bytes());
        b[32..40].copy_from_slice(&0x1234_5678_9abcu64.to_le_bytes());
        b[56..64].copy_from_slice(&0x77u64.to_le_bytes());
        let p = Packet::parse(&b, 0x4000).unwrap();
        assert!(p.has_barrier);
        assert_eq!(p.completion, 0x77);
        let Body::Dispatch { kernel, launch } = p.body else { panic!("no dispatch") };
        assert_eq!((kernel, launch.grid, launch.workgroup), (0x1234_5678_9abc, [1024, 1, 1], [256, 1, 1]));
        assert_eq!((launch.lds_bytes, launch.packet), (512, 0x4000));
    }

    #[test]
    fn an_unpublished_slot_is_nothing() {
        let mut b = [0u8; 64];
        b[0] = INVALID as u8;
        assert_eq!(Packet::parse(&b, 0), None);
    }
}
