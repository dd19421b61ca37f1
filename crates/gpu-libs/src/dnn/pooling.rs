//! Pooling over windows of one to three dimensions.

use gpu::foreign::Address;
use gpu::{Buffer, Vendor};

use super::calls::{Calls, Nan, PoolingIndex, PoolingMode};
use super::descriptor::Descriptor;
use super::{Dnn, Int, NetworkNumber, Tensor, TensorMut, TensorShape, host};
use crate::error::{Result, ensure, int};

const CALL: &str = "pooling";

/// How a window moves over its input; one number for each dimension of space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolingOptions {
    pub mode: PoolingMode,
    pub window: Vec<usize>,
    /// Before and after the input, less than the window.
    pub padding: Vec<usize>,
    pub stride: Vec<usize>,
}

impl PoolingOptions {
    /// Windows side by side, no padding.
    pub fn new(mode: PoolingMode, window: &[usize]) -> Self {
        Self { mode, window: window.to_vec(), padding: vec![0; window.len()], stride: window.to_vec() }
    }

    /// The same padding in every dimension.
    pub fn padding(mut self, elements: usize) -> Self {
        self.padding.fill(elements);
        self
    }

    /// The same stride in every dimension.
    pub fn stride(mut self, step: usize) -> Self {
        self.stride.fill(step);
        self
    }

    #[track_caller]
    fn output(&self, x: &[usize]) -> Result<Vec<usize>> {
        let n = self.window.len();
        let is_whole = (1..=3).contains(&n) && self.padding.len() == n && self.stride.len() == n;
        ensure(CALL, is_whole && x.len() == n + 2, || format!("{x:?} by {self:?}"))?;
        let mut lengths = x[..2].to_vec();
        for i in 0..n {
            let (window, padding, stride) = (self.window[i], self.padding[i], self.stride[i]);
            ensure(CALL, window > padding && stride > 0, || {
                format!("a window of {window} with a padding of {padding} and a stride of {stride}")
            })?;
            let room = x[i + 2].saturating_add(2 * padding);
            ensure(CALL, window <= room, || format!("a window of {window} in {room} elements, padding included"))?;
            lengths.push((room - window) / stride + 1);
        }
        Ok(lengths)
    }
}

/// A pooling of tensors of one shape.
pub struct Pooling<T: NetworkNumber> {
    dnn: Dnn,
    pooling: Descriptor,
    mode: PoolingMode,
    x: (TensorShape, Descriptor),
    y: (TensorShape, Descriptor),
    /// Where MIOpen found the largest elements, from `forward_training` for `backward`.
    places: Option<Buffer<u8>>,
    number: std::marker::PhantomData<T>,
}

impl<T: NetworkNumber> Pooling<T> {
    /// A pooling of `x` (batch, channels, space).
    #[track_caller]
    pub fn new(dnn: &Dnn, x: &TensorShape, options: &PoolingOptions) -> Result<Self> {
        let y = x.like(&options.output(x.lengths())?)?;
        let n = options.window.len().max(2);
        let in_plane = |values: &[usize], filling: usize| -> Result<Vec<Int>> {
            let filling = std::iter::repeat_n(filling, n - values.len());
            filling.chain(values.iter().copied()).map(|value| int(CALL, "an option", value)).collect()
        };
        let window = in_plane(&options.window, 1)?;
        let (padding, stride) = (in_plane(&options.padding, 0)?, in_plane(&options.stride, 1)?);
        let pooling = Descriptor::make(dnn, Calls::pooling_create, Calls::pooling_destroy)?;
        let (calls, vendor, handle) = (dnn.calls(), dnn.vendor(), pooling.handle());
        let (mode, n) = (options.mode.number(vendor), n as Int);
        let (window, padding, stride) = (window.as_ptr(), padding.as_ptr(), stride.as_ptr());
        // SAFETY: a live descriptor; arrays of n numbers, which the library copies and which live until the call's end.
        unsafe {
            match vendor {
                Vendor::Amd => {
                    calls.pooling_set_amd(handle, mode, n, window, padding, stride)?;
                    // Bytes, the default, count windows of up to 255 elements.
                    calls.pooling_index(handle, PoolingIndex::U32.number(vendor))?;
                }
                Vendor::Nvidia => {
                    let nan = Nan::Propagate.number(vendor);
                    calls.pooling_set_nvidia(handle, mode, nan, n, window, padding, stride)?;
                }
            }
        }
        let tensor = |shape: &TensorShape| Descriptor::tensor(dnn, CALL, T::TYPE, &shape.padded(2, 4));
        let (x, y) = ((x.clone(), tensor(x)?), (y.clone(), tensor(&y)?));
        let number = std::marker::PhantomData;
        Ok(Self { dnn: dnn.clone(), pooling, mode: options.mode, x, y, places: None, number })
    }

    /// The output's shape: the input's layout, other lengths.
    pub fn output(&self) -> &TensorShape {
        &self.y.0
    }

    #[track_caller]
    pub fn forward(&self, x: Tensor<'_, T>, y: TensorMut<'_, T>) -> Result<()> {
        let (x, y) = (self.input(&x, &self.x.0)?, self.target(&y, &self.y.0)?);
        self.run(x, y, None)
    }

    /// `forward` that keeps what `backward` needs, until the next one.
    #[track_caller]
    pub fn forward_training(&mut self, x: Tensor<'_, T>, y: TensorMut<'_, T>) -> Result<()> {
        let (x, y) = (self.input(&x, &self.x.0)?, self.target(&y, &self.y.0)?);
        if self.dnn.vendor() == Vendor::Nvidia {
            self.places = Some(self.dnn.binding().alloc(0)?); // cuDNN looks for the places again
            return self.run(x, y, None);
        }
        let mut bytes = 0;
        self.dnn.enter()?;
        // SAFETY: live descriptors and a valid out pointer.
        unsafe { self.dnn.calls().pooling_bytes(self.pooling.handle(), self.y.1.handle(), &mut bytes) }?;
        let places = self.dnn.binding().alloc::<u8>(bytes)?;
        self.run(x, y, Some(&places))?;
        self.places = Some(places);
        Ok(())
    }

    /// x's gradient, from what the last `forward_training` took and gave, and its gradient.
    #[track_caller]
    pub fn backward(&self, x: Tensor<'_, T>, y: Tensor<'_, T>, dy: Tensor<'_, T>, dx: TensorMut<'_, T>) -> Result<()> {
        let (at_x, at_dx) = (self.input(&x, &self.x.0)?, self.target(&dx, &self.x.0)?);
        let (at_y, at_dy) = (self.input(&y, &self.y.0)?, self.input(&dy, &self.y.0)?);
        ensure(CALL, self.mode != PoolingMode::Max || self.places.is_some(), || {
            "backward before forward_training".into()
        })?;
        let work = self.places.as_ref().map_or(Ok(0), |places| self.dnn.binding().input(&places.all()))?;
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.pooling.handle());
        let (x, y, one, zero) = (self.x.1.handle(), self.y.1.handle(), host(&1.0), host(&0.0));
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors; the places are as many as MIOpen asked for.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => {
                    calls.pooling_back_amd(handle, by, one, y, at_y, y, at_dy, x, at_x, zero, x, at_dx, work)
                }
                Vendor::Nvidia => {
                    calls.pooling_back_nvidia(handle, by, one, y, at_y, y, at_dy, x, at_x, zero, x, at_dx)
                }
            }
        }
    }

    #[track_caller]
    fn run(&self, at_x: Address, at_y: Address, places: Option<&Buffer<u8>>) -> Result<()> {
        let (calls, handle, by) = (self.dnn.calls(), self.dnn.handle(), self.pooling.handle());
        let (x, y, one, zero) = (self.x.1.handle(), self.y.1.handle(), host(&1.0), host(&0.0));
        let bytes = places.map_or(0, Buffer::len);
        let work = places.map_or(Ok(0), |places| self.dnn.binding().input(&places.all()))?;
        self.dnn.enter()?;
        // SAFETY: memory of this queue, checked against the descriptors; the places are as many as MIOpen asked for.
        unsafe {
            match self.dnn.vendor() {
                Vendor::Amd => {
                    let keep = places.is_some();
                    calls.pooling_amd(handle, by, one, x, at_x, zero, y, at_y, keep, work, bytes)
                }
                Vendor::Nvidia => calls.pooling_nvidia(handle, by, one, x, at_x, zero, y, at_y),
            }
        }
    }

    #[track_caller]
    fn fits(&self, found: &TensorShape, want: &TensorShape) -> Result<()> {
        ensure(CALL, found == want, || format!("{found:?} where {want:?} is due"))
    }

    #[track_caller]
    fn input(&self, tensor: &Tensor<'_, T>, want: &TensorShape) -> Result<Address> {
        self.fits(&tensor.shape, want)?;
        Ok(self.dnn.binding().input(&tensor.data)?)
    }

    #[track_caller]
    fn target(&self, tensor: &TensorMut<'_, T>, want: &TensorShape) -> Result<Address> {
        self.fits(&tensor.shape, want)?;
        Ok(self.dnn.binding().output(&tensor.data)?)
    }
}
