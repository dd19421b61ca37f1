//! The lane-wise handler that nearly every vector instruction shares, and the macros that name its bodies.
//!
//! `lane_ops!` turns `"v_add_f32" => (a: f32, b: f32) -> f32 { a + b }` into a handler: rows are read as the typed
//! values of the signature, the body runs on every lane, and the result is merged under exec. A parameter after `;`
//! is the old destination. Bodies run on dead lanes too, so they must not trap.

use super::inst::Inst;
use super::value::{Value, ValueKind};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow, Role};

/// One lane of an instruction with up to three sources.
pub trait LaneOp {
    type A: Value;
    type B: Value;
    type C: Value;
    type Old: Value;
    type Out: Value;
    fn lane(a: Self::A, b: Self::B, c: Self::C, old: Self::Old) -> Self::Out;
}

/// One lane of a comparison.
pub trait LaneTest {
    type A: Value;
    fn lane(a: Self::A, b: Self::A) -> bool;
}

impl<const N: usize> CodeEntry<N> {
    pub fn lanes<O: LaneOp>() -> Self {
        CodeEntry {
            run: lanes::<N, O>,
            role: Role::Lanes,
            kinds: [O::A::KIND, O::B::KIND, O::C::KIND],
            dst: O::Out::KIND,
            reads_dst: O::Old::KIND != ValueKind::None,
        }
    }

    pub fn test<O: LaneTest>() -> Self {
        CodeEntry {
            run: test::<N, O>,
            role: Role::Compare,
            kinds: [O::A::KIND, O::A::KIND, ValueKind::None],
            dst: ValueKind::None,
            reads_dst: false,
        }
    }
}

/// Two rows for a 64-bit operand, the same row twice for the rest.
#[inline(always)]
fn pair<const N: usize, T: Value>(v: &[[u32; N]], at: u16) -> (&[u32; N], &[u32; N]) {
    let second = if T::KIND.is_64() { at as usize + 1 } else { at as usize };
    debug_assert!(second < v.len());
    // SAFETY: lowering names rows of the register file only (`Handler`), and a pair's first row is never the last.
    unsafe { (v.get_unchecked(at as usize), v.get_unchecked(second)) }
}

#[inline(always)]
fn row_mut<const N: usize>(v: &mut [[u32; N]], at: usize) -> &mut [u32; N] {
    debug_assert!(at < v.len());
    // SAFETY: as in `pair`.
    unsafe { v.get_unchecked_mut(at) }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn lanes<const N: usize, O: LaneOp>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let mut lo = [0u32; N];
    let mut hi = [0u32; N];
    {
        let (a0, a1) = pair::<N, O::A>(&w.v, i.src[0]);
        let (b0, b1) = pair::<N, O::B>(&w.v, i.src[1]);
        let (c0, c1) = pair::<N, O::C>(&w.v, i.src[2]);
        let (d0, d1) = pair::<N, O::Old>(&w.v, i.dst);
        for l in 0..N {
            let out = O::lane(
                O::A::load(a0[l], a1[l]),
                O::B::load(b0[l], b1[l]),
                O::C::load(c0[l], c1[l]),
                O::Old::load(d0[l], d1[l]),
            );
            (lo[l], hi[l]) = out.store();
        }
    }
    if O::Out::KIND.is_16() {
        // The other half stays.
        let to = row_mut(&mut w.v, i.dst as usize);
        for l in 0..N {
            let m = w.live[l] & 0xffff;
            to[l] = (lo[l] & m) | (to[l] & !m);
        }
        return Flow::Next;
    }
    w.put(i.dst, &lo);
    if O::Out::KIND.is_64() {
        w.put(i.dst + 1, &hi);
    }
    Flow::Next
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn test<const N: usize, O: LaneTest>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let mut hit = [0u32; N];
    {
        let (a0, a1) = pair::<N, O::A>(&w.v, i.src[0]);
        let (b0, b1) = pair::<N, O::A>(&w.v, i.src[1]);
        for l in 0..N {
            let is_true = O::lane(O::A::load(a0[l], a1[l]), O::A::load(b0[l], b1[l]));
            hit[l] = if is_true { w.live[l] } else { 0 };
        }
    }
    let mask = super::wave::gather(&hit);
    w.set_mask(i.sdst, mask);
    if i.detail.sets_exec {
        w.set_mask(crate::isa::code::EXEC, mask);
    }
    Flow::Next
}

/// Copies a whole row to the live lanes of another.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
pub fn copy_row<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let from = w.v[i.src[0] as usize];
    w.put(i.dst, &from);
    Flow::Next
}

macro_rules! lane_ops {
    ($(#[$doc:meta])* fn $find:ident; $($($op:literal)|+ => ($($arg:ident : $ty:ty),+ $(; $old:ident : $oty:ty)?) -> $ret:ty $body:block)*) => {
        $(#[$doc])*
        pub fn $find<const N: usize>(op: &str) -> Option<$crate::exec::CodeEntry<N>> {
            match op {
                $($($op)|+ => {
                    struct Op;
                    $crate::exec::lane::lane_ops!(@imp Op ($($arg: $ty),+) ($($old: $oty)?) $ret $body);
                    Some($crate::exec::CodeEntry::lanes::<Op>())
                })*
                _ => None,
            }
        }
    };
    (@imp $s:ident ($a:ident: $ta:ty) ($($o:ident: $to:ty)?) $r:ty $body:block) => {
        $crate::exec::lane::lane_ops!(@full $s ($a: $ta, _b: (), _c: ()) ($($o: $to)?) $r $body);
    };
    (@imp $s:ident ($a:ident: $ta:ty, $b:ident: $tb:ty) ($($o:ident: $to:ty)?) $r:ty $body:block) => {
        $crate::exec::lane::lane_ops!(@full $s ($a: $ta, $b: $tb, _c: ()) ($($o: $to)?) $r $body);
    };
    (@imp $s:ident ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) ($($o:ident: $to:ty)?) $r:ty $body:block) => {
        $crate::exec::lane::lane_ops!(@full $s ($a: $ta, $b: $tb, $c: $tc) ($($o: $to)?) $r $body);
    };
    (@full $s:ident ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) () $r:ty $body:block) => {
        $crate::exec::lane::lane_ops!(@full $s ($a: $ta, $b: $tb, $c: $tc) (_o: ()) $r $body);
    };
    (@full $s:ident ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) ($o:ident: $to:ty) $r:ty $body:block) => {
        impl $crate::exec::lane::LaneOp for $s {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type Old = $to;
            type Out = $r;
            #[inline(always)]
            #[allow(clippy::unused_unit, reason = "the type is a parameter of the macro")]
            fn lane($a: $ta, $b: $tb, $c: $tc, $o: $to) -> $r $body
        }
    };
}
pub(crate) use lane_ops;
