//! RDNA3 (gfx11) bit layouts, by the tables of AMD's RDNA3 ISA guide. RDNA4 shares those of vectors, scalars and LDS.
//!
//! Sub-encodings follow the base word: a literal (source 255), DPP16 (250) or DPP8 (233, 234).

use super::{DecodeError, Decoded, Dpp, Encoding, Family, Table, Words, bits, code, is_set};

const DPP8: u16 = 233;
const DPP8_FI: u16 = 234;
const DPP16: u16 = 250;

/// Decodes one instruction; `words` may run past its end.
pub fn decode(words: &[u32]) -> Result<Decoded, DecodeError> {
    let Some(&first) = words.first() else { return Err(DecodeError::Cut { word: 0 }) };
    let reader = RdnaReader { words: Words { family: Family::Rdna3, words, first } };
    if first >> 31 == 0 {
        return reader.short_vector();
    }
    match first >> 26 {
        0x32 => reader.dual(),
        // 0xcd and 0xce are interpolation, for graphics only.
        0x33 if first >> 23 == 0x198 => reader.packed(),
        0x35 => reader.long_vector(),
        0x36 => reader.lds(),
        0x37 => reader.memory(),
        0x38 => reader.buffer(),
        0x3d => reader.scalar_memory(),
        _ => reader.scalar(),
    }
}

pub(super) struct RdnaReader<'a> {
    pub words: Words<'a>,
}

impl RdnaReader<'_> {
    /// Replaces source 0 by the register and lane movement of a DPP word.
    fn dpp(&self, d: &mut Decoded) -> Result<(), DecodeError> {
        let kind = d.src[0];
        if !matches!(kind, DPP8 | DPP8_FI | DPP16) {
            return Ok(());
        }
        let w = self.words.word(d.n_words as usize)?;
        d.n_words += 1;
        d.src[0] = code::VGPR + (w & 0xff) as u16;
        if kind == DPP16 {
            let w64 = w as u64;
            d.dpp = Some(Dpp::Row {
                ctrl: bits(w64, 16, 8),
                row_mask: bits(w64, 31, 28) as u8,
                bank_mask: bits(w64, 27, 24) as u8,
                bound_ctrl: is_set(w64, 19),
                fetch_inactive: is_set(w64, 18),
            });
            if d.is_short {
                d.neg = (bits(w64, 20, 20) | bits(w64, 22, 22) << 1) as u8;
                d.abs = (bits(w64, 21, 21) | bits(w64, 23, 23) << 1) as u8;
            }
        } else {
            d.dpp = Some(Dpp::Eight { select: w >> 8, fetch_inactive: kind == DPP8_FI });
        }
        Ok(())
    }

    pub fn short_vector(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.first as u64;
        let src0 = bits(q, 8, 0);
        let vsrc1 = code::VGPR + bits(q, 16, 9);
        let mut d = match self.words.first >> 25 {
            0x3e => {
                let mut d = self.words.start(Encoding::Vopc, bits(q, 24, 17), 1)?;
                d.src = [src0, vsrc1, code::ZERO];
                d.sdst = if d.op.starts_with("v_cmpx") { code::EXEC } else { code::VCC };
                d
            }
            0x3f => {
                let mut d = self.words.start(Encoding::Vop1, bits(q, 16, 9), 1)?;
                d.src[0] = src0;
                d.dst = code::VGPR + bits(q, 24, 17);
                if d.op == "v_readfirstlane_b32" {
                    d.sdst = bits(q, 24, 17);
                }
                d
            }
            _ => {
                let mut d = self.words.start(Encoding::Vop2, bits(q, 30, 25), 1)?;
                d.dst = code::VGPR + bits(q, 24, 17);
                d.src = [src0, vsrc1, code::ZERO];
                if d.op.contains("_co_ci_") || d.op == "v_cndmask_b32" {
                    d.src[2] = code::VCC;
                    d.sdst = code::VCC;
                }
                // The constant is an operand of its own: D = S0 * K + S1, and D = S0 * S1 + K.
                if d.op.starts_with("v_fmamk") {
                    d.src = [src0, code::LITERAL, vsrc1];
                } else if d.op.starts_with("v_fmaak") {
                    d.src = [src0, vsrc1, code::LITERAL];
                }
                d
            }
        };
        d.is_short = true;
        self.dpp(&mut d)?;
        self.words.literal(&mut d, 3)?;
        Ok(d)
    }

    pub fn long_vector(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let number = bits(q, 25, 16);
        let is_sd = Table::of(self.words.family).names.contains_key(&(Encoding::Vop3sd, number));
        let mut d = self.words.start(if is_sd { Encoding::Vop3sd } else { Encoding::Vop3 }, number, 2)?;
        d.dst = code::VGPR + bits(q, 7, 0);
        d.src = [bits(q, 40, 32), bits(q, 49, 41), bits(q, 58, 50)];
        d.omod = bits(q, 60, 59) as u8;
        d.neg = bits(q, 63, 61) as u8;
        d.is_clamped = is_set(q, 15);
        if is_sd {
            d.sdst = bits(q, 14, 8);
        } else {
            d.abs = bits(q, 10, 8) as u8;
            d.op_sel = bits(q, 14, 11) as u8;
        }
        // Comparisons and lane reads name a scalar register in the destination field.
        if number < 256 {
            d.sdst = if d.op.starts_with("v_cmpx") { code::EXEC } else { bits(q, 7, 0) };
        } else if matches!(d.op, "v_readlane_b32" | "v_readfirstlane_b32") || d.op.starts_with("v_s_") {
            d.sdst = bits(q, 7, 0);
        }
        self.dpp(&mut d)?;
        self.words.literal(&mut d, 3)?;
        Ok(d)
    }

    pub fn packed(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Vop3p, bits(q, 22, 16), 2)?;
        d.dst = code::VGPR + bits(q, 7, 0);
        d.src = [bits(q, 40, 32), bits(q, 49, 41), bits(q, 58, 50)];
        d.neg = bits(q, 63, 61) as u8;
        d.neg_hi = bits(q, 10, 8) as u8;
        d.op_sel = bits(q, 13, 11) as u8;
        d.op_sel_hi = (bits(q, 60, 59) | bits(q, 14, 14) << 2) as u8;
        d.is_clamped = is_set(q, 15);
        self.dpp(&mut d)?;
        self.words.literal(&mut d, 3)?;
        Ok(d)
    }

    pub fn dual(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut x = self.words.start(Encoding::Vopd, bits(q, 25, 22), 2)?;
        let mut y = self.words.start(Encoding::Vopd, bits(q, 21, 17), 2)?;
        x.dst = code::VGPR + bits(q, 63, 56);
        // The two destinations differ in parity, so the second keeps only seven bits.
        y.dst = code::VGPR + (bits(q, 55, 49) << 1 | (!bits(q, 63, 56) & 1));
        x.src = [bits(q, 8, 0), code::VGPR + bits(q, 16, 9), code::ZERO];
        y.src = [bits(q, 40, 32), code::VGPR + bits(q, 48, 41), code::ZERO];
        for half in [&mut x, &mut y] {
            match half.op {
                "v_dual_fmamk_f32" => half.src = [half.src[0], code::LITERAL, half.src[1]],
                "v_dual_fmaak_f32" => half.src[2] = code::LITERAL,
                "v_dual_cndmask_b32" => half.src[2] = code::VCC,
                _ => {}
            }
        }
        if x.src.contains(&code::LITERAL) || y.src.contains(&code::LITERAL) {
            x.literal = self.words.word(2)?;
            y.literal = x.literal;
            x.n_words = 3;
        }
        x.dual = Some(Box::new(y));
        Ok(x)
    }

    pub fn lds(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Ds, bits(q, 25, 18), 2)?;
        if is_set(q, 17) {
            return Err(DecodeError::Unsupported { op: d.op, word: self.words.first, what: "global data share" });
        }
        d.imm = bits(q, 15, 0) as i32;
        d.src = [bits(q, 39, 32), bits(q, 47, 40), bits(q, 55, 48)].map(|r| code::VGPR + r);
        d.dst = code::VGPR + bits(q, 63, 56);
        d.returns_old = d.op.contains("_rtn_");
        Ok(d)
    }

    fn memory(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let encoding = match bits(q, 17, 16) {
            0 => Encoding::Flat,
            1 => Encoding::Scratch,
            _ => Encoding::Global,
        };
        let mut d = self.words.start(encoding, bits(q, 24, 18), 2)?;
        // 13 bits, signed except for generic addresses.
        d.imm = match encoding {
            Encoding::Flat => (self.words.first & 0x1fff) as i32,
            _ => ((self.words.first << 19) as i32) >> 19,
        };
        d.src = [code::VGPR + bits(q, 39, 32), code::VGPR + bits(q, 47, 40), code::ZERO];
        d.dst = code::VGPR + bits(q, 63, 56);
        d.saddr = if encoding == Encoding::Flat { code::NULL } else { bits(q, 54, 48) };
        d.uses_vaddr = encoding != Encoding::Scratch || is_set(q, 55);
        d.returns_old = is_set(q, 14);
        Ok(d)
    }

    fn buffer(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Mubuf, bits(q, 25, 18), 2)?;
        d.imm = bits(q, 11, 0) as i32;
        d.src = [code::VGPR + bits(q, 39, 32), code::VGPR + bits(q, 47, 40), bits(q, 63, 56)];
        d.dst = code::VGPR + bits(q, 47, 40);
        d.saddr = bits(q, 52, 48) << 2;
        d.returns_old = is_set(q, 14);
        d.uses_vaddr = is_set(q, 54);
        if is_set(q, 55) {
            return Err(DecodeError::Unsupported { op: d.op, word: self.words.first, what: "indexed buffer access" });
        }
        Ok(d)
    }

    fn scalar_memory(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Smem, bits(q, 25, 18), 2)?;
        d.src = [bits(q, 5, 0) << 1, bits(q, 63, 57), code::ZERO];
        d.sdst = bits(q, 12, 6);
        // 21 bits, signed.
        d.imm = ((self.words.word(1)? << 11) as i32) >> 11;
        Ok(d)
    }

    pub fn scalar(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.first as u64;
        let imm = (self.words.first & 0xffff) as i16 as i32;
        let mut d = match self.words.first >> 23 {
            0x17d => {
                let mut d = self.words.start(Encoding::Sop1, bits(q, 15, 8), 1)?;
                d.sdst = bits(q, 22, 16);
                d.src[0] = bits(q, 7, 0);
                d
            }
            0x17e => {
                let mut d = self.words.start(Encoding::Sopc, bits(q, 22, 16), 1)?;
                d.src = [bits(q, 7, 0), bits(q, 15, 8), code::ZERO];
                d
            }
            0x17f => {
                let mut d = self.words.start(Encoding::Sopp, bits(q, 22, 16), 1)?;
                d.imm = imm;
                d
            }
            _ if self.words.first >> 28 == 0xb => {
                let mut d = self.words.start(Encoding::Sopk, bits(q, 27, 23), 1)?;
                d.sdst = bits(q, 22, 16);
                d.imm = imm;
                if d.op == "s_setreg_imm32_b32" {
                    d.src[0] = code::LITERAL;
                }
                d
            }
            _ if self.words.first >> 30 == 2 => {
                let mut d = self.words.start(Encoding::Sop2, bits(q, 29, 23), 1)?;
                d.sdst = bits(q, 22, 16);
                d.src = [bits(q, 7, 0), bits(q, 15, 8), code::ZERO];
                d
            }
            _ => return Err(DecodeError::Encoding { word: self.words.first }),
        };
        // The constant is an operand of its own, as in the vector forms.
        if matches!(d.op, "s_fmaak_f32" | "s_fmamk_f32") {
            d.literal = self.words.word(1)?;
            d.n_words = 2;
        } else if !d.op.starts_with("s_sendmsg_rtn") {
            // A message number is no operand: 255 means no literal there.
            self.words.literal(&mut d, 2)?;
        }
        Ok(d)
    }
}
