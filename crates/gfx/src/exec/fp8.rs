//! CDNA3's 8-bit floats, the FNUZ kinds: no infinities, no negative zero, one NaN at 0x80, a bias one above IEEE's.

/// One of the two formats.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Fp8Format {
    n_mantissa: u32,
    bias: i32,
}

/// Four bits of exponent, three of mantissa.
pub const FP8: Fp8Format = Fp8Format { n_mantissa: 3, bias: 8 };
/// Five bits of exponent, two of mantissa.
pub const BF8: Fp8Format = Fp8Format { n_mantissa: 2, bias: 16 };

const NAN: u8 = 0x80;

impl Fp8Format {
    pub fn widen(self, bits: u8) -> f32 {
        if bits == NAN {
            return f32::NAN;
        }
        let exponent = (bits as i32 & 0x7f) >> self.n_mantissa;
        let mantissa = (bits & ((1 << self.n_mantissa) - 1)) as f32 / (1 << self.n_mantissa) as f32;
        let magnitude = match exponent {
            0 => mantissa * 2f32.powi(1 - self.bias),
            e => (1.0 + mantissa) * 2f32.powi(e - self.bias),
        };
        if bits & 0x80 != 0 { -magnitude } else { magnitude }
    }

    /// Rounds to nearest even. What is too large, infinite or no number becomes NaN.
    pub fn narrow(self, x: f32) -> u8 {
        if !x.is_finite() {
            return NAN;
        }
        let exponent = ((x.to_bits() >> 23 & 0xff) as i32 - 127).max(1 - self.bias);
        // In units of the last place the mantissa is a whole number; a carry runs into the exponent by itself.
        let units = (x.abs() as f64 * 2f64.powi(self.n_mantissa as i32 - exponent)).round_ties_even() as i32;
        let code = ((exponent + self.bias - 1) << self.n_mantissa) + units;
        match code {
            0 => 0,
            1..=0x7f => code as u8 | (x.is_sign_negative() as u8) << 7,
            _ => NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the OCP/FNUZ tables: largest, one, smallest subnormal.
    #[test]
    fn the_tables_values() {
        assert_eq!(FP8.widen(0x7f), 240.0);
        assert_eq!(FP8.widen(0x40), 1.0);
        assert_eq!(FP8.widen(0x01), 2f32.powi(-10));
        assert_eq!(BF8.widen(0x7f), 57344.0);
        assert_eq!(BF8.widen(0x40), 1.0);
        assert_eq!(BF8.widen(0x81), -2f32.powi(-17));
        assert!(FP8.widen(0x80).is_nan());
    }

    #[test]
    fn every_value_returns_and_ties_go_to_even() {
        for format in [FP8, BF8] {
            for bits in (0..=255u8).filter(|b| *b != NAN) {
                assert_eq!(format.narrow(format.widen(bits)), bits, "{format:?} {bits:#x}");
            }
            for bits in 0..0x7f {
                let tie = (format.widen(bits) + format.widen(bits + 1)) / 2.0;
                assert_eq!(format.narrow(tie), bits + (bits & 1), "{format:?}, tie above {bits:#x}");
            }
            assert_eq!((format.narrow(f32::INFINITY), format.narrow(-0.0), format.narrow(1e9)), (NAN, 0, NAN));
        }
    }
}
