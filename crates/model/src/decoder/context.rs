//! What the blocks of a layer read, and the small pieces that all of them are made of: norms, biases, adapters, and what
//! brings a block's output into the stream.

use ops::{Exec, Product, View, ViewMut};

use crate::adapter::StepAdapters;
use crate::parts::{Linear, Norm, TensorId};
use crate::resident::Resident;
use crate::{Config, Error};

/// What the blocks of a layer read.
#[derive(Copy, Clone)]
pub struct Context<'a> {
    pub exec: Exec<'a>,
    pub config: &'a Config,
    pub weights: &'a Resident,
    /// Of the rows that the blocks work on; `None` where no row has any.
    pub adapters: Option<StepAdapters<'a>>,
}

impl<'a> Context<'a> {
    /// Without adapters.
    pub fn plain(exec: Exec<'a>, config: &'a Config, weights: &'a Resident) -> Self {
        Self { exec, config, weights, adapters: None }
    }
}

impl Context<'_> {
    /// Norms of queries and keys, where the layer has them.
    pub fn norm_heads(&self, [q, k]: [&mut ViewMut; 2], norms: [Option<TensorId>; 2]) -> Result<(), Error> {
        let (kind, eps) = (self.config.family.norm, self.config.norm_eps);
        match norms.map(|norm| norm.map(|norm| self.weights.view(norm))) {
            [Some(q_norm), Some(k_norm)] => ops::norm_both_heads(self.exec, [q, k], [q_norm, k_norm], kind, eps)?,
            [Some(norm), None] => ops::norm_heads(self.exec, q, norm, kind, eps)?,
            [None, Some(norm)] => ops::norm_heads(self.exec, k, norm, kind, eps)?,
            [None, None] => {}
        }
        Ok(())
    }

    /// What adapters make of `out`, the product of `x`.
    pub fn adapt(&self, linear: &Linear, x: View, out: &mut ViewMut) -> Result<(), Error> {
        self.adapt_all(x, &mut [(linear.weight, out.reborrow())])
    }

    /// As [`Self::adapt`], of several products at once.
    pub fn adapt_all(&self, x: View, outs: &mut [(TensorId, ViewMut)]) -> Result<(), Error> {
        match &self.adapters {
            Some(adapters) => adapters.apply(self.exec, x, outs),
            None => Ok(()),
        }
    }

    /// Whether adapters change a product, so that what goes into it must be written.
    pub fn is_adapted(&self, linear: &Linear) -> bool {
        self.adapters.is_some_and(|adapters| adapters.change(linear.weight))
    }

    pub fn add_bias(&self, linear: &Linear, x: &mut ViewMut) -> Result<(), Error> {
        match linear.bias {
            Some(bias) => Ok(ops::add_bias(self.exec, x, self.weights.view(bias))?),
            None => Ok(()),
        }
    }

    pub fn norm(&self, norm: Norm, x: View, out: &mut ViewMut) -> Result<(), Error> {
        let (weight, eps) = (self.weights.view(norm.weight), self.config.norm_eps);
        let bias = norm.bias.map(|bias| self.weights.view(bias));
        match self.config.family.norm {
            ops::NormKind::Rms => ops::rmsnorm(self.exec, x, weight, eps, out)?,
            ops::NormKind::Layer => ops::layernorm(self.exec, x, weight, bias, eps, out)?,
        }
        Ok(())
    }

    pub fn norm_in_place(&self, norm: Norm, x: &mut ViewMut) -> Result<(), Error> {
        let weight = self.weights.view(norm.weight);
        ops::norm_heads(self.exec, x, weight, self.config.family.norm, self.config.norm_eps)?;
        if let Some(bias) = norm.bias {
            ops::add_bias(self.exec, x, self.weights.view(bias))?;
        }
        Ok(())
    }

    /// Products of `norm(x)`, or of `x` where the family norms elsewhere. With adapters, `h` holds what went in.
    pub fn norm_products(
        &self,
        norm: Option<Norm>,
        x: View,
        h: &mut ViewMut,
        products: &mut [Product],
    ) -> Result<(), Error> {
        let Some(norm) = norm else { return Ok(ops::matmul(self.exec, x, products)?) };
        if self.config.family.norm == ops::NormKind::Rms && self.adapters.is_none() {
            let weight = self.weights.view(norm.weight);
            return Ok(ops::norm_matmul(self.exec, x, weight, self.config.norm_eps, h, products)?);
        }
        self.norm(norm, x, h)?;
        Ok(ops::matmul(self.exec, h.as_view(), products)?)
    }

    /// `x += y * linear`, with what the family does between.
    pub fn join(
        &self,
        y: View,
        linear: &Linear,
        norm: Option<Norm>,
        x: &mut ViewMut,
        branch: &mut ViewMut,
    ) -> Result<(), Error> {
        let weight = self.weights.view(linear.weight);
        let is_multiplied = self.adapters.is_some_and(|adapters| adapters.multiply(linear.weight));
        let is_plain = linear.bias.is_none() && norm.is_none() && self.config.residual_scale == 1.0 && !is_multiplied;
        if is_plain {
            ops::matmul(self.exec, y, &mut [Product::add(weight, x.reborrow())])?;
            return self.adapt(linear, y, x);
        }
        ops::matmul(self.exec, y, &mut [Product::write(weight, branch.reborrow())])?;
        self.adapt(linear, y, branch)?;
        self.add_bias(linear, branch)?;
        self.join_branch(norm, x, branch)
    }

    /// The same of `y = activation(gate) * up`, where no adapter changes the product: on a GPU, `y` is not written if the
    /// product can make it.
    pub fn join_gated(
        &self,
        activation: ops::Activation,
        (gate, up): (&mut ViewMut, View),
        linear: &Linear,
        norm: Option<Norm>,
        x: &mut ViewMut,
        branch: &mut ViewMut,
    ) -> Result<(), Error> {
        let weight = self.weights.view(linear.weight);
        let is_plain = linear.bias.is_none() && norm.is_none() && self.config.residual_scale == 1.0;
        if is_plain {
            let product = Product::add(weight, x.reborrow());
            let product = if activation == ops::Activation::Silu { product.coarse() } else { product };
            return Ok(ops::glu_matmul(self.exec, activation, gate, up, &mut [product])?);
        }
        if let ops::Exec::Cpu(_) = self.exec {
            ops::glu(self.exec, activation, gate, up)?;
            return self.join(gate.as_view(), linear, norm, x, branch);
        }
        ops::glu_matmul(self.exec, activation, gate, up, &mut [Product::write(weight, branch.reborrow())])?;
        self.add_bias(linear, branch)?;
        self.join_branch(norm, x, branch)
    }

    /// `x += branch`, normed and scaled as the family does.
    pub fn join_branch(&self, norm: Option<Norm>, x: &mut ViewMut, branch: &mut ViewMut) -> Result<(), Error> {
        let factor = self.config.residual_scale;
        match norm {
            Some(Norm { weight, bias: None }) if self.config.family.norm == ops::NormKind::Rms => {
                let (weight, eps) = (self.weights.view(weight), self.config.norm_eps);
                return Ok(ops::add_rmsnorm(self.exec, x, branch, weight, eps, factor)?);
            }
            Some(norm) => self.norm_in_place(norm, branch)?,
            None => {}
        }
        Ok(ops::add_scaled(self.exec, x, branch.as_view(), factor)?)
    }
}
