//! The op table: every op, type and odd shape, on each instruction set this machine has, against f64.

mod attention;
mod matmul;
mod quant;
mod support;
