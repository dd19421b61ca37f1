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
        match binding.vendor() {
            Vendor::Amd => Self::amd(binding, kind, direction.number(Vendor::Amd), placement, layout, true),
            Vendor::Nvidia => {
                let transform = if kind == ScalarKind::F32 { PlanType::C2C } else { PlanType::Z2Z };
                let (n, distance) = (extents(&layout.lengths), layout.distance);
                let side = Side { extent: n, stride: layout.stride, distance };
                Self::nvidia(binding, transform, direction.number(Vendor::Nvidia), layout, [side.clone(), side])
            }
        }
    }

    #[track_caller]
    pub fn real(binding: &Binding, kind: ScalarKind, direction: RealDirection, layout: &FftLayout) -> Result<Self> {
        match binding.vendor() {
            Vendor::Amd => Self::amd(binding, kind, direction.number(Vendor::Amd), Placement::Apart, layout, false),
            Vendor::Nvidia => {
                let transform = match (direction, kind) {
                    (RealDirection::Forward, ScalarKind::F32) => PlanType::R2C,
                    (RealDirection::Forward, _) => PlanType::D2Z,
                    (RealDirection::Inverse, ScalarKind::F32) => PlanType::C2R,
                    (RealDirection::Inverse, _) => PlanType::Z2D,
                };
                let full = Side { extent: extents(&layout.lengths), stride: 1, distance: layout.total() };
                let mut extent = full.extent.clone();
                if let Some(last) = extent.last_mut() {
                    *last = *last / 2 + 1;
                }
                let half = Side { extent, stride: 1, distance: layout.half() };
                let sides = if direction == RealDirection::Forward { [full, half] } else { [half, full] };
                Self::nvidia(binding, transform, 0, layout, sides)
            }
        }
    }

    #[track_caller]
    fn amd(
        binding: &Binding,
        kind: ScalarKind,
        transform: Int,
        placement: Placement,
        layout: &FftLayout,
        has_layout: bool,
    ) -> Result<Self> {
        let calls = Calls::get(Vendor::Amd)?;
        binding.enter()?;
        set_up(calls)?;
        let precision = if kind == ScalarKind::F32 { Precision::Single } else { Precision::Double };
        // rocFFT counts dimensions from the fastest.
        let lengths: Vec<usize> = layout.lengths.iter().rev().copied().collect();
        let mut strides = vec![layout.stride];
        for length in &lengths[..lengths.len() - 1] {
            strides.push(strides[strides.len() - 1] * length);
        }
        let mut description: Handle = std::ptr::null_mut();
        let (mut plan, mut info): (Handle, Handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (placement, precision) = (placement.number(Vendor::Amd), precision.number(Vendor::Amd));
        let (n, none) = (strides.len(), std::ptr::null());
        // SAFETY: valid out pointers; arrays of the lengths given, which the library copies.
        let made = unsafe {
            let array = ArrayType::Complex.number(Vendor::Amd);
            let described = if has_layout {
                calls.description_create(&mut description).and_then(|()| {
                    let (at, step) = (strides.as_ptr(), layout.distance);
                    calls.description_layout(description, array, array, none, none, n, at, step, n, at, step)
                })
            } else {
                Ok(())
            };
            described.and_then(|()| {
                let (at, batch) = (lengths.as_ptr(), layout.batch);
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
    fn nvidia(
        binding: &Binding,
        transform: PlanType,
        direction: Int,
        layout: &FftLayout,
        [mut from, mut to]: [Side; 2],
    ) -> Result<Self> {
        let calls = Calls::get(Vendor::Nvidia)?;
        binding.enter()?;
        let mut plan: Int = 0;
        // SAFETY: a valid out pointer.
        unsafe { calls.create(&mut plan) }?;
        let inner = Inner::Nvidia { plan, transform, direction };
        let mut made = Self { calls, inner, binding: binding.clone(), _work: binding.alloc(0)? };
        let mut lengths = extents(&layout.lengths);
        let (rank, mut bytes) = (lengths.len() as Int, 0);
        // SAFETY: a live plan; arrays of `rank` numbers each; the stream lives as long as the plan.
        unsafe {
            calls.set_auto(plan, 0)?;
            calls.set_stream(plan, binding.stream())?;
            calls.make_plan(
                plan,
                rank,
                lengths.as_mut_ptr(),
                from.extent.as_mut_ptr(),
                from.stride as i64,
                from.distance as i64,
                to.extent.as_mut_ptr(),
                to.stride as i64,
                to.distance as i64,
                transform.number(Vendor::Nvidia),
                layout.batch as i64,
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

/// How one side of a cuFFT plan lies.
#[derive(Clone)]
struct Side {
    extent: Vec<i64>,
    stride: usize,
    distance: usize,
}

fn extents(lengths: &[usize]) -> Vec<i64> {
    lengths.iter().map(|n| *n as i64).collect()
}
