//! Softmax and its logarithm, forward and backward.

use gpu::Vendor;

use super::calls::{SoftmaxKind, SoftmaxOver};
use super::{Dnn, NetworkNumber, Tensor, TensorMut, host};
use crate::error::Result;

impl Dnn {
    /// y = softmax(x), or its logarithm.
    #[track_caller]
    pub fn softmax<T: NetworkNumber>(
        &self,
        kind: SoftmaxKind,
        over: SoftmaxOver,
        x: Tensor<'_, T>,
        y: TensorMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "softmax";
        let (x, y) = (self.read(CALL, &x)?, self.write_like(CALL, &y, x.shape.lengths())?);
        let (calls, handle, vendor) = (self.calls(), self.handle(), self.vendor());
        let (kind, over) = (kind.number(vendor), over.number(vendor));
        let (one, zero) = (host(&1.0), host(&0.0));
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; scale factors that outlive the call.
        unsafe {
            match vendor {
                Vendor::Amd => calls.softmax_amd(handle, one, x.handle(), x.at, zero, y.handle(), y.at, kind, over),
                Vendor::Nvidia => {
                    calls.softmax_nvidia(handle, kind, over, one, x.handle(), x.at, zero, y.handle(), y.at)
                }
            }
        }
    }

    /// x's gradient, from the result and its gradient.
    #[track_caller]
    pub fn softmax_backward<T: NetworkNumber>(
        &self,
        kind: SoftmaxKind,
        over: SoftmaxOver,
        y: Tensor<'_, T>,
        dy: Tensor<'_, T>,
        dx: TensorMut<'_, T>,
    ) -> Result<()> {
        const CALL: &str = "softmax_backward";
        let y = self.read(CALL, &y)?;
        let dy = self.read_like(CALL, &dy, y.shape.lengths())?;
        let dx = self.write_like(CALL, &dx, y.shape.lengths())?;
        let (calls, handle, vendor) = (self.calls(), self.handle(), self.vendor());
        let (kind, over) = (kind.number(vendor), over.number(vendor));
        let (one, zero) = (host(&1.0), host(&0.0));
        let ((yd, dyd, dxd), (at_y, at_dy, at_dx)) = ((y.handle(), dy.handle(), dx.handle()), (y.at, dy.at, dx.at));
        self.enter()?;
        // SAFETY: memory of this queue, as large as the descriptors say; scale factors that outlive the call.
        unsafe {
            match vendor {
                Vendor::Amd => calls.softmax_back_amd(handle, one, yd, at_y, dyd, at_dy, zero, dxd, at_dx, kind, over),
                Vendor::Nvidia => {
                    calls.softmax_back_nvidia(handle, kind, over, one, yd, at_y, dyd, at_dy, zero, dxd, at_dx)
                }
            }
        }
    }
}
