//! A plan of one of the two libraries, with its work buffer.

use std::sync::OnceLock;

use gpu::foreign::{Address, Binding};
use gpu::{Buffer, Vendor};

use super::calls::{Calls, Handle, Int};
use super::{ArrayType, Direction, FftLayout, Placement, PlanType, Precision, RealDirection};
use crate::error::{Result, report_late};
use crate::scalar::ScalarKind;

pub(super) struct FftPlan {
    calls: &'static Calls,
    inner: Inner,
    binding: Binding,
    /// The library writes here while a transform runs.
    _work: Buffer<u8>,
}

enum Inner {
    Amd { plan: Handle, info: Handle },
    Nvidia { plan: Int, transform: PlanType, direction: Int },
}

/// rocFFT wants to be set up once in a process.
fn set_up(calls: &'static Calls) -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    // SAFETY: no preconditions.
    DONE.get_or_init(|| unsafe { calls.setup() }).clone()
}

impl FftPlan {
    #[track_caller]
    pub fn complex(
        binding: &Binding,
        kind: ScalarKind,
        direction: Direction,
        placement: Placement,
        layout: &FftLayout,
    ) -> Result<Self> {
        let side = Side { extent: layout.lengths.clone(), stride: layout.stride, distance: layout.distance };
        let transform = match binding.vendor() {
            Vendor::Amd => {
                let (array, transform) = (ArrayType::Complex, direction.number(Vendor::Amd));
                let shape = PlanShape { lengths: &layout.lengths, batch: layout.batch, sides: [side.clone(), side] };
                return Self::amd(binding, kind, transform, placement, &shape, [array; 2]);
            }
            Vendor::Nvidia if kind == ScalarKind::F32 => PlanType::C2C,
            Vendor::Nvidia => PlanType::Z2Z,
        };
        let shape = PlanShape { lengths: &layout.lengths, batch: layout.batch, sides: [side.clone(), side] };
        Self::nvidia(binding, transform, direction.number(Vendor::Nvidia), &shape)
    }

    /// `sides` are those of the real numbers and of half the spectrum.
    #[track_caller]
    pub fn real(
        binding: &Binding,
        kind: ScalarKind,
        direction: RealDirection,
        placement: Placement,
        lengths: &[usize],
        batch: usize,
        [real, half]: [Side; 2],
    ) -> Result<Self> {
        let is_forward = direction == RealDirection::Forward;
        let sides = if is_forward { [real, half] } else { [half, real] };
        let shape = PlanShape { lengths, batch, sides };
        if binding.vendor() == Vendor::Amd {
            let arrays = [ArrayType::Real, ArrayType::Half];
            let arrays = if is_forward { arrays } else { [arrays[1], arrays[0]] };
            return Self::amd(binding, kind, direction.number(Vendor::Amd), placement, &shape, arrays);
        }
        let transform = match (direction, kind) {
            (RealDirection::Forward, ScalarKind::F32) => PlanType::R2C,
            (RealDirection::Forward, _) => PlanType::D2Z,
            (RealDirection::Inverse, ScalarKind::F32) => PlanType::C2R,
            (RealDirection::Inverse, _) => PlanType::Z2D,
        };
        Self::nvidia(binding, transform, 0, &shape)
    }

    #[track_caller]
    fn amd(
        binding: &Binding,
        kind: ScalarKind,
        transform: Int,
        placement: Placement,
        shape: &PlanShape<'_>,
        arrays: [ArrayType; 2],
    ) -> Result<Self> {
        let calls = Calls::get(Vendor::Amd)?;
        binding.enter()?;
        set_up(calls)?;
        let precision = if kind == ScalarKind::F32 { Precision::Single } else { Precision::Double };
        // rocFFT counts dimensions from the fastest.
        let lengths: Vec<usize> = shape.lengths.iter().rev().copied().collect();
        let [strides_from, strides_to] = shape.sides.each_ref().map(Side::strides);
        let [from, to] = arrays.map(|array| array.number(Vendor::Amd));
        let [distance_from, distance_to] = shape.sides.each_ref().map(|side| side.distance);
        let mut description: Handle = std::ptr::null_mut();
        let (mut plan, mut info): (Handle, Handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (placement, precision) = (placement.number(Vendor::Amd), precision.number(Vendor::Amd));
        let (n, none) = (lengths.len(), std::ptr::null());
        // SAFETY: valid out pointers; arrays of the lengths given, which the library copies.
        let made = unsafe {
            calls.description_create(&mut description).and_then(|()| {
                let (at_from, at_to) = (strides_from.as_ptr(), strides_to.as_ptr());
                calls.description_layout(
                    description,
                    from,
                    to,
                    none,
                    none,
                    n,
                    at_from,
                    distance_from,
                    n,
                    at_to,
                    distance_to,
                )?;
                let (at, batch) = (lengths.as_ptr(), shape.batch);
                calls.plan_create(&mut plan, placement, transform, precision, n, at, batch, description)
            })
        };
        if !description.is_null() {
            // SAFETY: made above and destroyed once; a plan keeps no reference to it.
            unsafe { calls.description_destroy(description) }?;
        }
        made?;
        let mut bytes = 0;
        // SAFETY: a live plan and valid out pointers.
        unsafe { calls.work_bytes(plan, &mut bytes).and_then(|()| calls.info_create(&mut info)) }?;
        let work = binding.alloc::<u8>(bytes)?;
        let plan = Self { calls, inner: Inner::Amd { plan, info }, binding: binding.clone(), _work: work };
        let at = binding.input(&plan._work.all())?;
        // SAFETY: a live info; the stream and the work buffer live as long as the plan.
        unsafe {
            calls.info_stream(info, binding.stream())?;
            if bytes > 0 {
                calls.info_work(info, at, bytes)?;
            }
        }
        Ok(plan)
    }

    #[track_caller]
    fn nvidia(binding: &Binding, transform: PlanType, direction: Int, shape: &PlanShape<'_>) -> Result<Self> {
        let [mut extent_from, mut extent_to] = shape.sides.each_ref().map(|side| extents(&side.extent));
        let [from, to] = &shape.sides;
        let calls = Calls::get(Vendor::Nvidia)?;
        binding.enter()?;
        let mut plan: Int = 0;
        // SAFETY: a valid out pointer.
        unsafe { calls.create(&mut plan) }?;
        let inner = Inner::Nvidia { plan, transform, direction };
        let mut made = Self { calls, inner, binding: binding.clone(), _work: binding.alloc(0)? };
        let mut lengths = extents(shape.lengths);
        let (rank, mut bytes) = (lengths.len() as Int, 0);
        // SAFETY: a live plan; arrays of `rank` numbers each; the stream lives as long as the plan.
        unsafe {
            calls.set_auto(plan, 0)?;
            calls.set_stream(plan, binding.stream())?;
            calls.make_plan(
                plan,
                rank,
                lengths.as_mut_ptr(),
                extent_from.as_mut_ptr(),
                from.stride as i64,
                from.distance as i64,
                extent_to.as_mut_ptr(),
                to.stride as i64,
                to.distance as i64,
                transform.number(Vendor::Nvidia),
                shape.batch as i64,
                &mut bytes,
            )?;
        }
        made._work = binding.alloc::<u8>(bytes)?;
        let at = binding.input(&made._work.all())?;
        // SAFETY: memory of this queue, as much as the plan asked for, that lives as long as the plan.
        unsafe { calls.set_work(plan, at) }?;
        Ok(made)
    }

    #[track_caller]
    pub fn run(&self, binding: &Binding, mut from: Address, mut to: Address) -> Result<()> {
        binding.enter()?;
        let calls = self.calls;
        // SAFETY: the plan's shape was checked against both buffers by the caller; both belong to the plan's queue.
        unsafe {
            match self.inner {
                Inner::Amd { plan, info } => calls.execute(plan, &mut from, &mut to, info),
                Inner::Nvidia { plan, transform, direction } => match transform {
                    PlanType::C2C => calls.exec_c2c(plan, from, to, direction),
                    PlanType::Z2Z => calls.exec_z2z(plan, from, to, direction),
                    PlanType::R2C => calls.exec_r2c(plan, from, to),
                    PlanType::D2Z => calls.exec_d2z(plan, from, to),
                    PlanType::C2R => calls.exec_c2r(plan, from, to),
                    PlanType::Z2D => calls.exec_z2d(plan, from, to),
                },
            }
        }
    }
}

impl Drop for FftPlan {
    fn drop(&mut self) {
        // Transforms under way use the plan's tables.
        if self.binding.wait().is_err() {
            return;
        }
        // SAFETY: made by this type and destroyed once; nothing of it is under way.
        let gone = unsafe {
            match self.inner {
                Inner::Amd { plan, info } => self.calls.info_destroy(info).and_then(|()| self.calls.plan_destroy(plan)),
                Inner::Nvidia { plan, .. } => self.calls.destroy(plan),
            }
        };
        report_late(&self.binding, gone);
    }
}

/// What a plan is made for.
struct PlanShape<'a> {
    lengths: &'a [usize],
    batch: usize,
    /// Of what is read and what is written.
    sides: [Side; 2],
}

/// How one side of a transform lies in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Side {
    /// Elements of each dimension that are there, used or not.
    pub extent: Vec<usize>,
    /// From one element to the next.
    pub stride: usize,
    /// From one transform of a batch to the next.
    pub distance: usize,
}

impl Side {
    /// Of each dimension, the fastest first.
    fn strides(&self) -> Vec<usize> {
        let mut strides = vec![self.stride];
        for extent in self.extent[1..].iter().rev() {
            strides.push(strides[strides.len() - 1] * extent);
        }
        strides
    }
}

fn extents(lengths: &[usize]) -> Vec<i64> {
    lengths.iter().map(|n| *n as i64).collect()
}
